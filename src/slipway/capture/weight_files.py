"""Files with the weights of a model: a torch or safetensors file, or a Hugging Face folder."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from slipway.base.bounded_read import read_head
from slipway.checkpoint.export_folder import INDEX, WEIGHTS
from slipway.checkpoint.saved_tensors import SavedTensor, SavedTensors, in_safetensors
from slipway.state.wrappers import SEGMENTS

V = TypeVar("V")

SAFE_TORCH = "2.10"
"""The oldest torch whose ``weights_only`` keeps a file from running code (CVE-2026-24747)."""
NESTED_KEYS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts save a model's state_dict beside other data."""


class WeightsError(Exception):
    """A path is not usable as weights; the message states the reason and follows the path in a sentence."""


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Return the state_dict in the file or folder ``path``, with tensors on the CPU.

    Raises:
        WeightsError: if it cannot be read, cannot be read safely, or holds no state_dict.
    """
    found = saved_tensors(path)
    files = SavedTensors(Path("/"), {})
    return _torch_file(path) if found is None else {name: files.read_tensor(each) for name, each in found.items()}


def saved_tensors(path: Path) -> dict[str, SavedTensor] | None:
    """Return the tensors of a .safetensors file or a Hugging Face folder, not read yet; None for another file.

    Pieces name their file by its absolute path.

    Raises:
        WeightsError: if a file is damaged or missing, or if the folder holds no safetensors files.
    """
    if not path.is_dir() and path.suffix != ".safetensors":
        return None
    try:
        files = _files_of(path) if path.is_dir() else {path: None}
        held = {file: _tensors_of(file) for file in files}
    except WeightsError:
        raise
    except Exception as error:  # for a damaged file the readers raise many types
        raise _unreadable(error) from error
    found: dict[str, SavedTensor] = {}
    for file, names in files.items():
        for name in held[file] if names is None else names:
            if name not in held[file]:
                raise WeightsError(f"lacks {name}, which its index places in {file.name}")
            found[name] = held[file][name]
    return found


def _tensors_of(file: Path) -> dict[str, SavedTensor]:
    read_head(file, limit=1)  # fails for a FIFO, on which the readers would block
    return in_safetensors(file.absolute())


def _files_of(folder: Path) -> Mapping[Path, Iterable[str] | None]:
    """Return the safetensors files of a Hugging Face folder, each with the tensors to read from it; None for all."""
    if (folder / INDEX).exists():
        files = defaultdict(list)
        for name, file in json.loads((folder / INDEX).read_bytes())["weight_map"].items():
            files[folder / file].append(name)
        return files
    candidates = [folder / WEIGHTS] if (folder / WEIGHTS).exists() else [*folder.glob("*.safetensors")]
    if len(candidates) != 1:
        raise WeightsError(
            f"has neither {WEIGHTS} nor {INDEX}. For files in another format, load the model in the library "
            "that wrote them, and save it as safetensors."
        )
    return {candidates[0]: None}


def _torch_file(path: Path) -> dict[str, Tensor]:
    if torch.__version__ < SAFE_TORCH:
        raise WeightsError(
            f"is not read with torch {torch.__version__}, because such a file can run code (CVE-2026-24747, fixed in "
            "2.10). Convert it on a machine with a newer torch: "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), 'weights.safetensors')"
        )
    try:
        read_head(path, limit=1)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _unreadable(error) from error
    if isinstance(content, Mapping):
        nested = (content[key] for key in NESTED_KEYS if isinstance(content.get(key), Mapping))
        content = next(nested, content)
    if not (isinstance(content, Mapping) and all(isinstance(value, Tensor) for value in content.values())):
        raise WeightsError("must hold a state_dict: a dictionary of tensors by name, and nothing else.")
    return dict(content)


def _unreadable(error: Exception) -> WeightsError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return WeightsError(f"cannot be read: {reason}")


def fitted(given: Mapping[str, V], own: Iterable[str]) -> dict[str, V]:
    """Return the state_dict ``given`` with its names mapped to a model's ``own`` names, ignoring wrappers."""
    own = [*own]
    shorter = Counter(map(_without_wrappers, own))
    free = {_without_wrappers(name): name for name in own if name not in given}
    names = {short: name for short, name in free.items() if shorter[short] == 1}
    return {name if name in own else names.get(_without_wrappers(name), name): value for name, value in given.items()}


def _without_wrappers(name: str) -> str:
    """Return the name of a tensor without the segments that DistributedDataParallel and torch.compile add."""
    return ".".join(part for part in name.split(".") if part not in SEGMENTS)
