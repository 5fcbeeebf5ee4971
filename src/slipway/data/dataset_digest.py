"""Check that a resumed attempt trains on the same data, by digests of split indices and of a few samples.

A script that splits its data without a seed would resume with another split, and validate on samples on which it has
trained. Indices are compared exactly. Of data in memory (lists, arrays, tensors), a few samples are compared.
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
"""Maximum number of items compared of a list, array or tensor, evenly spaced."""
ELEMENTS = 1024
"""Maximum number of elements compared of an item that is an array or a tensor."""
DEPTH = 3
"""Maximum nesting of containers whose items are compared."""
MAX_PASSES = 8
"""Number of passes per epoch whose data are compared: the first ones."""
SPLIT = ("indices", "weights")
"""Attributes that hold a split: of Subset, SubsetRandomSampler, WeightedRandomSampler and similar classes."""
INNER = ("dataset", "data_source", "sampler", "batch_sampler")
"""Attributes of loaders, data sets and samplers that hold data sets and samplers."""


class Digest(NamedTuple):
    """Digests of a pass's data; a digest is "" if the pass has no such data."""

    indices: str
    """Digest of the split indices when the pass began."""
    made_indices: str
    """Digest of the split indices before the first epoch, if the script had created them by then."""
    made_samples: str
    """Digest of some samples in memory before the first epoch, if the script had created them by then."""
    lists: str = ""
    """Digest of some items of the lists that the pass reads, when it began."""


class Data:
    """The data of each pass of an epoch, compared with the data of the previous attempt."""

    def __init__(self) -> None:
        """Start without digests."""
        self._made: dict[int, list[tuple[Callable[[], object], str, str]]] = {}
        self._loaders: list[Callable[[], object]] = []
        self._read: dict[int, Digest] = {}
        self._saved: dict[int, Digest] = {}

    def resume(self, facts: Mapping[str, Any]) -> None:
        """Compare later passes with ``facts``, which the method of this name returned at the save."""
        self._saved = {int(number): Digest(*digest) for number, digest in facts.items()}
        self._read = dict(self._saved)

    def facts(self) -> dict[str, Any]:
        """Return the digests for a checkpoint, as ``resume`` takes them."""
        return {str(number): list(digest) for number, digest in self._read.items()}

    def digest_before_epochs(self, objects: Iterable[Any]) -> None:
        """Digest the loaders, data sets and samplers among ``objects``, which the script created before its epochs."""
        for found in objects:
            if isinstance(found, DataLoader):
                self._loaders.append(_reference(found))
            for part in _parts(found) if isinstance(found, (DataLoader, Dataset, Sampler)) else ():
                if not any(same() is part for same, *_ in self._made.get(id(part), ())):
                    indices = "" if _restores_itself(part) else _indices(part)
                    self._made[id(part)] = [(_reference(part), indices, _samples(part))]

    def begin(self, number: int, loader: object, *, within: bool) -> None:
        """Compare the data of a pass that begins with the data at the save.

        Args:
            number: the pass's number in its epoch.
            loader: the pass's loader.
            within: whether the run was saved within this pass, on the same number of ranks.

        Raises:
            StateMismatchError: if the pass would read another split.
        """
        if number >= MAX_PASSES:
            return
        now, saved = self._digest(loader), self._saved.pop(number, None)
        self._read[number] = now
        if saved is None:
            return
        made = [now] if within else [now, *self._all_digests_before_epochs()]  # loaders may alternate between epochs
        if _is_missing_digest("made_indices", saved, made) or (within and saved.indices != now.indices):
            raise StateMismatchError(
                "different-data",
                "the indices or weights of a Subset or sampler differ from those at the save. Seed the split of the "
                "data: random_split(data, lengths, generator=torch.Generator().manual_seed(0)). If the script computes "
                "them from the model, compute them only if session.batch is 0, and keep them in extra.",
            )
        if (within and _is_missing_digest("lists", saved, [now])) or _is_missing_digest("made_samples", saved, made):
            warn(
                log,
                "different-data",
                "a loader has other samples, or the same in another order, than when the run was saved: seed the code "
                "that creates, shuffles or splits the data, and shuffle a copy in each epoch",
            )

    def of_dataset(self, dataset: object) -> tuple[str, str]:
        """Return digests of the split indices of ``dataset``, and of its samples in memory before the first epoch."""
        parts = [*_parts(dataset)]
        return _joined(_indices(part) for part in parts), self._digests_before_epochs(parts)[1]

    def _digest(self, loader: object) -> Digest:
        parts = [*_parts(loader)]
        indices = [_indices(part) for part in parts]
        lists = [_samples(part) for part in parts if isinstance(part, (list, tuple))]
        return Digest(_joined(indices), *self._digests_before_epochs(parts), _joined(lists))

    def _digests_before_epochs(self, parts: Iterable[object]) -> tuple[str, str]:
        """Return ``made_indices`` and ``made_samples`` of a loader with these parts."""
        made = [digests for part in parts for same, *digests in self._made.get(id(part), ()) if same() is part]
        indices, samples = (_joined(each[kind] for each in made) for kind in range(2))
        return indices, samples

    def _all_digests_before_epochs(self) -> Iterator[Digest]:
        """Yield the digests, before the first epoch, of all loaders that the script had created by then."""
        for reference in self._loaders:
            if (loader := reference()) is not None:  # not by truth value, which calls len(): some loaders have none
                yield Digest("", *self._digests_before_epochs(_parts(loader)))


def _is_missing_digest(kind: str, saved: Digest, found: Iterable[Digest]) -> bool:
    """Return whether no Digest in ``found`` has the saved digest of this kind; False if the saved or first is ""."""
    first, *others = [getattr(each, kind) for each in found]
    return bool(first and getattr(saved, kind)) and getattr(saved, kind) not in {first, *others}


def _reference(value: object) -> Callable[[], object]:
    try:
        return weakref.ref(value)
    except TypeError:  # a list has no weak references
        return lambda: value


def _joined(digests: Iterable[str]) -> str:
    text = " ".join(filter(None, digests))
    return text and hashlib.sha256(text.encode()).hexdigest()[:16]


def _indices(part: object) -> str:
    """Return the digest of the indices or weights of ``part``; "" if it has none."""
    found = hashlib.sha256()
    given = [(name, numbers) for name in SPLIT if (numbers := _numbers(_attribute(part, name))) is not None]
    for name, numbers in given:
        found.update(f"{name} {len(numbers)} {numbers.dtype.str} ".encode() + numbers.tobytes())
    return found.hexdigest() if given else ""


def _restores_itself(part: object) -> bool:
    """Return whether ``part`` has a ``state_dict``, so that ``extra`` may have restored it already."""
    try:
        return hasattr(part, "state_dict")
    except Exception:  # noqa: BLE001 -- a script's own __getattr__ may raise anything
        return False


def _samples(part: object) -> str:
    """Return the digest of some samples in memory; "" if ``part`` holds none or restores itself."""
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
    """Return an attribute in the ``__dict__`` of ``part``, or None: properties may be slow or raise an error."""
    return getattr(part, "__dict__", {}).get(name)


def _numbers(value: object) -> np.ndarray[Any, Any] | None:
    """Return a list, array or tensor of numbers as an array; None if ``value`` is not one."""
    if not isinstance(value, (list, tuple, range, np.ndarray, Tensor)):
        return None
    try:
        found = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):  # bfloat16, or lists of different lengths
        return None
    return found if found.dtype.kind in "biuf" else None


def _described(value: object, depth: int) -> Iterator[bytes]:
    """Yield the bytes to digest for ``value``; nothing if it holds no data."""
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
    """Return the bytes of a row's first elements; b"" for an array of objects."""
    if isinstance(row, Tensor):
        row = row.detach().reshape(-1)[:ELEMENTS].cpu().contiguous().view(torch.uint8).numpy()
    row = np.asarray(row).reshape(-1)[:ELEMENTS]
    return b"" if row.dtype.hasobject else row.tobytes()


def _item(value: object, depth: int) -> Iterable[bytes]:
    if isinstance(value, (bool, int, float, type(None))):
        return [repr(value).encode()]
    if isinstance(value, (str, PurePath)):
        return [PurePath(value).name.encode("utf-8", "surrogateescape")]  # each job may have its own data folder
    return _described(value, depth - 1)


def _places(count: int) -> list[int]:
    return sorted({*np.linspace(0, count - 1, SAMPLES).astype(int).tolist()}) if count else []
