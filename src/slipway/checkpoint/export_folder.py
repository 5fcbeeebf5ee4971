"""Export of a run's weights to a Hugging Face folder: safetensors files with an index, and further files."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from safetensors.torch import save_file

from slipway.base.bounded_read import open_regular
from slipway.base.files import sync_folder, write_json
from slipway.checkpoint.export import (
    ExportError,
    find,
    models,
    require_new,
    require_tensors,
    several_models,
    state_dict,
    writing,
)
from slipway.checkpoint.format import sync_files
from slipway.checkpoint.saved_tensors import SavedTensor, SavedTensors
from slipway.checkpoint.store import reading

WEIGHTS = "model.safetensors"
PART = "model-{number:05}-of-{total:05}.safetensors"
INDEX = "model.safetensors.index.json"
"""Name of the file that tells which file holds which tensor, if there are several."""
MAX_FILE_BYTES = 2 << 30
"""Size of a file, which is held in memory while it is written. A tensor that is larger gets a file to itself."""
METADATA = {"format": "pt"}
"""Metadata that transformers expects in the header of a file."""


def export_folder(
    run: Path, target: Path, *, best: bool, model: str | None, extra: Sequence[Path], progress: Callable[[str], None]
) -> str:
    """Write the weights of a model in the run folder ``run`` to the folder ``target``; return its name and the step.

    Args:
        run: a run folder of a session or the trainer, or a single checkpoint.
        target: a new folder.
        best: whether to export the best checkpoint instead of the newest.
        model: name of one of several models.
        extra: files to copy into the folder, and folders whose files to copy, such as a configuration and a tokenizer.
        progress: called with a line after each file.

    Raises:
        SlipwayError, OSError: if there are no such weights, or they cannot be written; there is then no ``target``.
    """
    require_new(target)
    others = _files(extra)
    found = find(run, best=best)
    chosen = models(found, model)
    if len(chosen) > 1:
        raise several_models("a folder", chosen)
    ((name, component),) = chosen.items()
    saved = found.on_disk
    handles = {key: saved.tensors[component, key] for key in saved.names(component)}
    state = require_tensors(state_dict(component, handles, found.header.trees.get(component)), SavedTensor)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with writing(target):
        temporary.mkdir()
        try:
            _write_tensors(temporary, state, saved, progress)
            for file in others:
                shutil.copyfile(file, temporary / file.name)
            sync_files(temporary)
            temporary.rename(target)
            sync_folder(target.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return f"{name} at step {found.header.position.step}"


def _write_tensors(
    folder: Path, state: Mapping[str, SavedTensor], saved: SavedTensors, progress: Callable[[str], None]
) -> None:
    groups = _groups({name: tensor.nbytes for name, tensor in state.items()})
    places: dict[str, str] = {}
    for number, names in enumerate(groups, 1):
        file = WEIGHTS if len(groups) == 1 else PART.format(number=number, total=len(groups))
        save_file({name: saved.read_tensor(state[name]) for name in names}, folder / file, metadata=METADATA)
        places |= dict.fromkeys(names, file)
        progress(f"{file} ({number} of {len(groups)})")
    if len(groups) > 1:
        total = sum(tensor.nbytes for tensor in state.values())
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
    for path in folder.iterdir():
        path.chmod(folder.stat().st_mode & 0o666)  # safetensors creates files with mode 0600


def _groups(sizes: Mapping[str, int]) -> list[list[str]]:
    """Return the names in ``sizes``, in order, divided into groups of at most MAX_FILE_BYTES."""
    groups: list[list[str]] = [[]]
    total = 0
    for name, size in sizes.items():
        if groups[-1] and total + size > MAX_FILE_BYTES:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return groups


def _files(extra: Sequence[Path]) -> list[Path]:
    """Return the files in ``extra``, and those in its folders.

    Raises:
        SlipwayError: if one cannot be read, or if two have the same name.
    """
    found = []
    for path in extra:
        with reading(path):
            files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
            for file in files:
                open_regular(file).close()
        found += files
    names = Counter([WEIGHTS, INDEX, *(file.name for file in found)])
    if twice := [name for name, count in names.items() if count > 1]:
        raise ExportError("file-exists", f"--extra: the folder already has a file {twice[0]}.")
    return found
