"""Warning for an ``enumerate``, or a ``zip`` with numbers, that counts a resumed pass's batches from 0 again."""

from __future__ import annotations

import gc
import inspect
import itertools
import logging
import re
from types import FrameType, GeneratorType
from typing import Any

from slipway.base.errors import warn

log = logging.getLogger(__name__)

DEPTH = 4
"""Maximum iterators between a counter and the batches, such as ``map``, ``islice`` or a class with ``__next__``."""


def warn_of_numbering(batches: FrameType, *, done: int, total: int | None, epoch: int) -> None:
    """Warn if a counter numbers the batches of a resumed pass as if the pass began now.

    Call this while the script requests the first batch, and only for a resumed pass: the function examines all objects
    of the process, which takes some hundredths of a second.

    Args:
        batches: the frame of the running generator of batches.
        done: batches of this pass done, above 0; also the number of the next batch.
        total: batches of the whole pass; None if unknown.
        epoch: number of the epoch, because some scripts count across epochs.
    """
    running = _generators_from(batches)
    epoch_begin = None if total is None else epoch * total
    for counter in [each for each in gc.get_objects() if issubclass(type(each), (enumerate, zip))]:
        number = _number(counter, running)
        if number is not None and (number < done or number == epoch_begin):
            warn(
                log,
                "numbered-from-zero",
                "the epoch continues with batch %d, which %s numbers %d: use "
                "enumerate(session.batches(loader), session.batch)",
                done,
                type(counter).__name__,
                number,
            )
            return


def _generators_from(frame: FrameType | None) -> list[FrameType]:
    """Return ``frame`` and the frames of generators that wait for it, such as a progress bar's."""
    found = []
    while frame and frame.f_code.co_flags & inspect.CO_GENERATOR:
        found.append(frame)
        frame = frame.f_back
    return found


def _number(counter: enumerate[Any] | zip[Any], running: list[FrameType]) -> int | None:
    """Return the number that ``counter`` assigns to the next batch; None if it counts other items."""
    inner: Any = counter.__reduce__()[1]
    if isinstance(counter, enumerate):
        iterator, number = inner
        return int(number) if _takes_items_from(iterator, running) else None
    places = [place for place, each in enumerate(inner) if _takes_items_from(each, running)]
    if not places:
        return None
    numbers = ((_next_number(each), place) for place, each in enumerate(inner))
    found = [number - (place < places[0]) for number, place in numbers if number is not None]
    return found[0] if found else None


def _takes_items_from(iterator: Any, running: list[FrameType]) -> bool:
    """Return whether ``iterator`` takes its items from one of the ``running`` generators."""
    layer = [iterator]
    for _ in range(DEPTH):
        for each in layer:
            if isinstance(each, GeneratorType) and each.gi_frame in running:
                return True
        inner = gc.get_referents(*layer)
        layer = [each for each in inner if isinstance(each, (dict, tuple)) or hasattr(type(each), "__next__")]
    return False


def _next_number(iterator: Any) -> int | None:
    """Return the next number of ``itertools.count`` or a range iterator with step 1; None for other iterators."""
    if isinstance(iterator, itertools.count) and (count := re.fullmatch(r"count\((-?\d+)\)", repr(iterator))):
        return int(count[1])
    if isinstance(iterator, type(iter(range(0)))):
        parts: Any = iterator.__reduce__()  # iter, (range,), items taken
        (numbers,), taken = parts[1], parts[2] if len(parts) > 2 else 0  # noqa: PLR2004 -- no third part counts as 0
        return int(numbers.start + (taken or 0)) if numbers.step == 1 else None
    return None
