"""Whether a resumed attempt trains on the same data: digests of the indices of splits, and of a few samples.

A script that splits its data without a seed would continue with another split, and validate on samples that it has
trained on. Indices are compared exactly; of data in memory (lists, arrays, tensors) a few samples are.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from slipway.base.errors import StateMismatchError, warn
from slipway.checkpoint.values import obstacle

log = logging.getLogger(__name__)

SAMPLES = 64
"""Items of a list, array or tensor that are compared, at equal distances."""
ELEMENTS = 1024
"""Of an item that is an array or a tensor."""
DEPTH = 3
MAX_PASSES = 8
"""Passes of an epoch whose data are compared: the first ones."""
SPLIT = ("indices", "weights")
"""Attributes of Subset, SubsetRandomSampler and WeightedRandomSampler, and of classes like them."""
INNER = ("dataset", "data_source", "sampler", "batch_sampler")
"""Attributes of loaders, data sets and samplers that are data sets and samplers."""


class Digest(NamedTuple):
    """What a pass reads; "" if it has none."""

    indices: str
    """Of the indices of its splits, when it began."""
    made_indices: str
    """Of those indices before the first epoch, if the script had made them then."""
    made_samples: str
    """Of some samples in memory, likewise."""
    lists: str = ""
    """Of some items of lists that it reads, when it began."""


class Data:
    """The data of each pass of an epoch, compared with those of the attempt before."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._made: dict[int, list[tuple[Callable[[], object], str, str]]] = {}
        self._loaders: list[Callable[[], object]] = []
        self._read: dict[int, Digest] = {}
        self._saved: dict[int, Digest] = {}

    def resume(self, facts: Mapping[str, Any]) -> None:
        """Compare with what ``facts`` returned at the save."""
        self._saved = {int(number): Digest(*digest) for number, digest in facts.items()}
        self._read = dict(self._saved)

    def facts(self) -> dict[str, Any]:
        """Return what ``resume`` takes."""
        return {str(number): list(digest) for number, digest in self._read.items()}

    def note_made(self, objects: Iterable[Any]) -> None:
        """Describe the loaders among ``objects`` of the script, which it has made before its first epoch."""
        for found in objects:
            if isinstance(found, DataLoader):
                self._loaders.append(_reference(found))
            for part in _parts(found) if isinstance(found, (DataLoader, Dataset, Sampler)) else ():
                if not any(same() is part for same, *_ in self._made.get(id(part), ())):
                    indices = "" if _restores_itself(part) else _indices(part)
                    self._made[id(part)] = [(_reference(part), indices, _samples(part))]

    def begin(self, number: int, loader: object, *, within: bool) -> None:
        """Compare what a pass is about to read.

        Args:
            number: of the pass in its epoch.
            loader: of it.
            within: whether the run was saved within this pass, on as many ranks.

        Raises:
            StateMismatchError: if the pass would be of another split.
        """
        if number >= MAX_PASSES:
            return
        now, saved = self._digest(loader), self._saved.pop(number, None)
        self._read[number] = now
        if saved is None:
            return
        made = [now] if within else [now, *self._made_digests()]  # loaders may take turns, by the epoch
        if _is_lacking("made_indices", saved, made) or (within and saved.indices != now.indices):
            raise StateMismatchError(
                "different-data",
                "the indices or weights of a Subset or sampler are not those with which the run was saved. Seed what "
                "splits the data: random_split(data, lengths, generator=torch.Generator().manual_seed(0)). What the "
                "script computes from the model, compute if session.batch is 0, and keep it in extra.",
            )
        if (within and _is_lacking("lists", saved, [now])) or _is_lacking("made_samples", saved, made):
            warn(
                log,
                "different-data",
                "a loader has other samples, or another order of them, than when the run was saved: seed what makes, "
                "shuffles or splits the data, and shuffle a copy in each epoch",
            )

    def _digest(self, loader: object) -> Digest:
        parts = [*_parts(loader)]
        indices = [_indices(part) for part in parts]
        lists = [_samples(part) for part in parts if isinstance(part, (list, tuple))]
        return Digest(_joined(indices), *self._made_of(parts), _joined(lists))

    def _made_of(self, parts: Iterable[object]) -> tuple[str, str]:
        """Return ``made_indices`` and ``made_samples`` of a loader of these parts."""
        made = [digests for part in parts for same, *digests in self._made.get(id(part), ()) if same() is part]
        indices, samples = (_joined(each[kind] for each in made) for kind in range(2))
        return indices, samples

    def _made_digests(self) -> Iterator[Digest]:
        """Yield the digests of all loaders that the script had made before its first epoch, as they were then."""
        for reference in self._loaders:
            if (loader := reference()) is not None:  # and no truth, which asks some for a length they lack
                yield Digest("", *self._made_of(_parts(loader)))


def _is_lacking(kind: str, saved: Digest, found: Iterable[Digest]) -> bool:
    """Return whether ``saved`` has a digest of this kind that none of those ``found`` has; the first may have none."""
    first, *others = [getattr(each, kind) for each in found]
    return bool(first and getattr(saved, kind)) and getattr(saved, kind) not in {first, *others}


def _reference(value: object) -> Callable[[], object]:
    try:
        return weakref.ref(value)
    except TypeError:  # of a list
        return lambda: value


def _joined(digests: Iterable[str]) -> str:
    text = " ".join(filter(None, digests))
    return text and hashlib.sha256(text.encode()).hexdigest()[:16]


def _indices(part: object) -> str:
    """Return the digest of the indices or weights that ``part`` has; "" if it has none."""
    found = hashlib.sha256()
    given = [(name, numbers) for name in SPLIT if (numbers := _numbers(_attribute(part, name))) is not None]
    for name, numbers in given:
        found.update(f"{name} {len(numbers)} {numbers.dtype.str} ".encode() + numbers.tobytes())
    return found.hexdigest() if given else ""


def _restores_itself(part: object) -> bool:
    """Return whether ``part`` may be in ``extra``, and restored by now."""
    try:
        return hasattr(part, "state_dict")
    except Exception:  # noqa: BLE001 -- of whatever the script looks up in its own __getattr__
        return False


def _samples(part: object) -> str:
    """Return the digest of some samples in memory; "" if there are none, or an attempt restores them."""
    found = hashlib.sha256()
    described = 0
    if isinstance(part, (list, tuple)) or (isinstance(part, Dataset) and not _restores_itself(part)):
        content = vars(part) if isinstance(part, Dataset) else {"": part}
        for name, value in content.items():
            for data in _described(value, DEPTH) if name not in {*SPLIT, *INNER, "datasets"} else ():
                described += 1
                found.update(name.encode() + data)
    return found.hexdigest() if described else ""


def _parts(loader: object) -> Iterator[object]:
    """Yield ``loader``, its data sets and samplers, each once."""
    waiting, seen = [loader], set[int]()
    while waiting:
        part = waiting.pop(0)
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += [_attribute(part, name) for name in INNER]
        several = _attribute(part, "datasets")  # of a ConcatDataset
        waiting += several if isinstance(several, (list, tuple)) else ()


def _attribute(part: object, name: str) -> Any:
    """Return an attribute that ``part`` itself has: properties may take long, or raise."""
    return getattr(part, "__dict__", {}).get(name)


def _numbers(value: object) -> np.ndarray[Any, Any] | None:
    """Return a list, array or tensor of numbers as an array; None if ``value`` is not one."""
    if not isinstance(value, (list, tuple, range, np.ndarray, Tensor)):
        return None
    try:
        found = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):  # of bfloat16, or of lists of different lengths
        return None
    return found if found.dtype.kind in "biuf" else None


def _described(value: object, depth: int) -> Iterator[bytes]:
    """Yield bytes that stand for ``value``, if it holds data."""
    if isinstance(value, (Tensor, np.ndarray)):
        if value.ndim and not (isinstance(value, Tensor) and obstacle(value)):
            yield f"{list(value.shape)} {value.dtype}".encode()
            for place in _places(len(value)):
                yield _elements(value[place])
    elif isinstance(value, (list, tuple, dict)) and depth:
        yield f"{len(value)} items".encode()
        items = [*value.items()] if isinstance(value, dict) else value
        for place in _places(len(items)):
            yield from _item(items[place], depth)


def _elements(row: Any) -> bytes:
    """Return the first bytes of a row of a tensor or an array; nothing of one of objects."""
    if isinstance(row, Tensor):
        row = row.detach().reshape(-1)[:ELEMENTS].cpu().contiguous().view(torch.uint8).numpy()
    row = np.asarray(row).reshape(-1)[:ELEMENTS]
    return b"" if row.dtype.hasobject else row.tobytes()


def _item(value: object, depth: int) -> Iterable[bytes]:
    if isinstance(value, (bool, int, float, type(None))):
        return [repr(value).encode()]
    if isinstance(value, (str, PurePath)):
        return [PurePath(value).name.encode("utf-8", "surrogateescape")]  # a job may have its own folder for data
    return _described(value, depth - 1)


def _places(count: int) -> list[int]:
    return sorted({*np.linspace(0, count - 1, SAMPLES).astype(int).tolist()}) if count else []
