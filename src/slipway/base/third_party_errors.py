"""Classify third-party exceptions by their message if they have no specific type or code.

Messages are not a stable interface, so tests/unit/test_third_party_errors.py and tests/distributed/test_faults.py
check each pattern against the messages of the installed versions.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

LOST_PEER = (
    "(?i)connection closed by peer|connection reset by peer|broken pipe|HorovodInternalError|remote process exited"
)
"""Gloo, Horovod and NCCL, in a rank whose peer has died."""
LOST_WORKER = (
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) "
    r"(?:is killed by signal: [^.]+|exited unexpectedly(?: with exit code \d+)?)"
)
"""torch's DataLoader, in the worker's parent process."""
OS_ERROR = r"\(os error (\d+)\)"
"""safetensors, if it cannot write a file: the system's error number."""
INVALID_VALUE = r"(?s)(?P<reason>.*?)(?: - at `\$\.(?P<section>[^.`]*)(?:\.(?P<key>[^`]*))?`)?"
"""msgspec, for a value that does not match its type."""
INVALID_CHOICE = r"Invalid enum value '?(?P<value>[^']*)'?"


class InvalidValue(NamedTuple):
    """A value that msgspec rejects, with reason, section and key."""

    reason: str
    section: str
    key: str


def lost_peer(error: BaseException) -> bool:
    """Return whether ``error`` means that another rank has died."""
    return bool(re.search(LOST_PEER, f"{type(error).__name__} {error}"))


def lost_worker(error: BaseException) -> str:
    """Return torch's message about a DataLoader worker that ended too early; "" if ``error`` is another error."""
    for said in (error.__cause__, error):  # the first one names the signal
        if found := re.search(LOST_WORKER, str(said)):
            return found[0]
    return ""


def os_error_numbers(error: BaseException) -> list[int]:
    """Return the system error numbers that only the text of ``error`` contains."""
    return [int(number) for number in re.findall(OS_ERROR, str(error))]


def too_few_for_batch_norm(error: BaseException) -> bool:
    """Return whether ``error`` means that batch norm had a single value for each channel.

    torch raises it in training for one sample whose features are 1 x 1.
    """
    return "Expected more than 1 value per channel when training" in str(error)


def unused_parameters(error: BaseException) -> bool:
    """Return whether ``error`` means that DistributedDataParallel waits for gradients of unused parameters.

    torch raises it in the step after the one that left the parameters unused.
    """
    return "parameters that were not used in producing loss" in str(error)


def is_operator_mismatch(error: BaseException) -> bool:
    """Return whether ``error``, from importing torchvision, means that its compiled operators are for another torch."""
    return "operator torchvision::" in str(error)


def invalid_value(error: BaseException) -> InvalidValue:
    """Return the reason, section and key of an error from msgspec."""
    found = re.fullmatch(INVALID_VALUE, str(error))
    parts = found.groupdict(default="") if found else {"reason": str(error), "section": "", "key": ""}
    return InvalidValue(**parts)


def invalid_choice(reason: str) -> Optional[str]:
    """Return the value that is not among the choices; None if ``reason``, from msgspec, is another one."""
    found = re.match(INVALID_CHOICE, reason)
    return found["value"] if found else None


def is_pattern_mismatch(reason: str) -> bool:
    """Return whether ``reason``, from msgspec, means that a text does not match its pattern."""
    return "matching regex" in reason
