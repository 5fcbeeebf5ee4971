"""Classify third-party exceptions by their message, where they have no type or code of their own.

A message is no promise of its author, so tests/unit/test_third_party_errors.py and tests/distributed/test_faults.py
hold each pattern against what the installed version says.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

LOST_PEER = re.compile(
    "(?i)connection closed by peer|connection reset by peer|broken pipe|HorovodInternalError|remote process exited"
)
"""Gloo, Horovod and NCCL, in a rank whose peer is gone."""
LOST_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) "
    r"(?:is killed by signal: [^.]+|exited unexpectedly(?: with exit code \d+)?)"
)
"""torch's DataLoader, in the process that started the worker."""
OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""safetensors, where it cannot write a file: the error number of the system."""
TOO_FEW_FOR_BATCH_NORM = re.compile("Expected more than 1 value per channel when training")
"""torch's batch norm, of one sample whose features are 1 x 1."""
UNUSED_PARAMETERS = re.compile("parameters that were not used in producing loss")
"""torch's DistributedDataParallel, in the step behind one that left parameters out."""
NO_OPERATOR = re.compile("operator torchvision::")
"""torch, while it imports a torchvision whose compiled operators were built for another torch."""
INVALID_VALUE = re.compile(r"(?P<reason>.*?)(?: - at `\$\.(?P<section>[^.`]*)(?:\.(?P<key>[^`]*))?`)?", re.DOTALL)
"""msgspec, of a value that does not fit its type."""
INVALID_CHOICE = re.compile(r"Invalid enum value '?(?P<value>[^']*)'?")
NO_MATCH = re.compile("matching regex")


class InvalidValue(NamedTuple):
    """A value that msgspec refuses."""

    reason: str
    section: str
    key: str


def lost_peer(error: BaseException) -> bool:
    """Return whether ``error`` means that another rank is gone."""
    return bool(LOST_PEER.search(f"{type(error).__name__} {error}"))


def lost_worker(error: BaseException) -> str:
    """Return what torch says of a worker of a DataLoader that has ended too early; "" if ``error`` is another one."""
    for said in (error.__cause__, error):  # the first one names the signal
        if found := LOST_WORKER.search(str(said)):
            return found[0]
    return ""


def os_error_numbers(error: BaseException) -> list[int]:
    """Return the error numbers of the system that ``error`` names in its text only."""
    return [int(number) for number in OS_ERROR.findall(str(error))]


def too_few_for_batch_norm(error: BaseException) -> bool:
    """Return whether batch norm had a single value for each channel."""
    return bool(TOO_FEW_FOR_BATCH_NORM.search(str(error)))


def unused_parameters(error: BaseException) -> bool:
    """Return whether DistributedDataParallel waits for gradients of parameters that took no part in a step."""
    return bool(UNUSED_PARAMETERS.search(str(error)))


def operators_missing(error: BaseException) -> bool:
    """Return whether torchvision's compiled operators do not fit this torch."""
    return bool(NO_OPERATOR.search(str(error)))


def invalid_value(error: BaseException) -> InvalidValue:
    """Return what msgspec refuses, where and why."""
    found = INVALID_VALUE.fullmatch(str(error))
    parts = found.groupdict(default="") if found else {"reason": str(error), "section": "", "key": ""}
    return InvalidValue(**parts)


def invalid_choice(reason: str) -> Optional[str]:
    """Return the value that is none of the choices, where msgspec gives that ``reason``."""
    found = INVALID_CHOICE.match(reason)
    return found["value"] if found else None


def matches_no_pattern(reason: str) -> bool:
    """Return whether msgspec gives as ``reason`` that a text does not match its pattern."""
    return bool(NO_MATCH.search(reason))
