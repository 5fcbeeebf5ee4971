"""Find an ``enumerate``, or a ``zip`` with numbers, that counts the batches of a resumed pass from 0 again."""

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
"""Most iterators between a counter and the batches, such as ``map``, ``islice`` or a class with ``__next__``."""


def warn_of_numbering(batches: FrameType, *, done: int, total: int | None, epoch: int) -> None:
    """Warn if something numbers the batches of a resumed pass as if it began now.

    To be called while the first batch is asked for. It looks at all objects of the process, which takes some hundredths
    of a second: only for a pass that is resumed.

    Args:
        batches: the frame of the generator of the batches, which runs now.
        done: batches of this pass done, above 0: the number of the next one.
        total: batches of the whole pass; None if that is not known.
        epoch: number of the epoch, as some count on over epochs.
    """
    running = _generators_from(batches)
    epoch_begin = None if total is None else epoch * total
    for counter in [each for each in gc.get_objects() if issubclass(type(each), (enumerate, zip))]:
        number = _number(counter, running)
        if number is not None and (number < done or number == epoch_begin):
            warn(
                log,
                "numbered-from-zero",
                "the epoch continues with batch %d, which %s numbers %d: write "
                "enumerate(session.batches(loader), session.batch)",
                done,
                type(counter).__name__,
                number,
            )
            return


def _generators_from(frame: FrameType | None) -> list[FrameType]:
    """Return ``frame`` and the generators that wait for it, such as that of a progress bar."""
    found = []
    while frame and frame.f_code.co_flags & inspect.CO_GENERATOR:
        found.append(frame)
        frame = frame.f_back
    return found


def _number(counter: enumerate[Any] | zip[Any], running: list[FrameType]) -> int | None:
    """Return the number that ``counter`` gives to the next batch; None if it counts something else."""
    inner: Any = counter.__reduce__()[1]
    if isinstance(counter, enumerate):
        iterator, number = inner
        return int(number) if _leads_to(iterator, running) else None
    places = [place for place, each in enumerate(inner) if _leads_to(each, running)]
    if not places:
        return None
    numbers = ((_next_number(each), place) for place, each in enumerate(inner))
    found = [number - (place < places[0]) for number, place in numbers if number is not None]
    return found[0] if found else None


def _leads_to(iterator: Any, running: list[FrameType]) -> bool:
    """Return whether ``iterator`` gets its items from one of the generators that run now."""
    layer = [iterator]
    for _ in range(DEPTH):
        for each in layer:
            if isinstance(each, GeneratorType) and each.gi_frame in running:
                return True
        inner = gc.get_referents(*layer)
        layer = [each for each in inner if isinstance(each, (dict, tuple)) or hasattr(type(each), "__next__")]
    return False


def _next_number(iterator: Any) -> int | None:
    """Return the next number of an iterator over a range or of ``itertools.count`` by steps of 1; None of others."""
    if isinstance(iterator, itertools.count) and (count := re.fullmatch(r"count\((-?\d+)\)", repr(iterator))):
        return int(count[1])
    if isinstance(iterator, type(iter(range(0)))):
        parts: Any = iterator.__reduce__()  # iter, (range,), items taken
        (numbers,), taken = parts[1], parts[2] if len(parts) > 2 else 0  # noqa: PLR2004 -- none left
        return int(numbers.start + (taken or 0)) if numbers.step == 1 else None
    return None
