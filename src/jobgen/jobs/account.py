"""Resource usage of attempts, read from the account that each job script writes (docs/reference/accounting.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Optional, Sequence

import msgspec

from slipway.base.bounded_read import SMALL, read_head

Natural = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class Account(msgspec.Struct, frozen=True):
    """Resources that one attempt used."""

    nodes: Natural
    count: Natural
    """GPUs or cores of each node, as ``unit`` states."""
    unit: Literal["GPU", "core"]
    seconds: Natural
    gpus_seen: Natural
    """Number of GPUs that the driver reported; 0: the fields below have no meaning."""
    busy: Natural
    """Mean GPU utilization in percent."""
    memory: Natural
    """Peak memory of the GPU that used most, in MiB."""
    memory_total: Natural
    """Memory size of that GPU, in MiB."""

    @property
    def whole(self) -> int:
        """GPUs or cores over all nodes."""
        return self.nodes * self.count


def read_account(path: Path) -> Optional[Account]:
    """Return the account in the file ``path``; None if the file is missing or invalid."""
    try:
        return msgspec.json.decode(read_head(path, limit=SMALL), type=Account)
    except (OSError, msgspec.DecodeError):
        return None


def describe(accounts: Sequence[Account], *, attempts: int) -> str:
    """Return the sum of ``accounts`` as a sentence, out of ``attempts`` attempts; "" without accounts.

    For one attempt the sentence is that of the job script (jobscripts/lib/account.bash).
    """
    if not accounts:
        return ""
    if attempts == 1:
        one = accounts[0]
        shape = f"{_plural(one.nodes, 'node')} x {_plural(one.count, one.unit)} x {_duration(one.seconds)}"
        return f"used {shape} = {_hours(accounts)}{_gpus(accounts)}"
    some = f"{len(accounts)} of {attempts}" if len(accounts) < attempts else str(attempts)
    return f"used {_hours(accounts)} in {some} attempts{_gpus(accounts)}"


def _hours(accounts: Sequence[Account]) -> str:
    seconds = {account.unit: 0 for account in accounts}
    for account in accounts:
        seconds[account.unit] += account.whole * account.seconds
    return " and ".join(f"{_quotient(amount, 3600)} {unit}-hours" for unit, amount in seconds.items())


def _gpus(accounts: Sequence[Account]) -> str:
    """Return GPU utilization, averaged over GPU-seconds, and peak memory as text, as far as drivers reported them."""
    used = [account for account in accounts if account.unit == "GPU"]
    seen = [account for account in used if account.gpus_seen]
    if not seen:
        return ""
    weights = [max(1, account.gpus_seen * account.seconds) for account in seen]
    busy = sum(weight * account.busy for weight, account in zip(weights, seen)) / sum(weights)
    fullest = max(seen, key=lambda account: account.memory)
    gpus = "GPU" if max(account.whole for account in used) == 1 else "GPUs"
    said = f"; {gpus} {busy:.0f} % busy, {_gibibytes(fullest.memory)} of {_gibibytes(fullest.memory_total)} GiB at most"
    told = sum(min(account.gpus_seen, account.whole) for account in used)
    every = sum(account.whole for account in used)
    if told == every:
        return said
    return said + (f" ({told} of {every} could be read)" if len(used) == 1 else " (not all could be read)")


def _plural(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def _duration(seconds: int) -> str:
    if seconds < 60:  # noqa: PLR2004 -- seconds per minute
        return f"{seconds} s"
    return f"{_quotient(seconds, 60)} min" if seconds < 3600 else f"{_quotient(seconds, 3600)} h"  # noqa: PLR2004


def _quotient(above: int, below: int) -> str:
    """Return above / below with one decimal from 10, three below 0.1, else two; rounded half up as in Bash."""
    digits = 1 if above >= 10 * below else 3 if 10 * above < below else 2
    scaled = (10**digits * above + below // 2) // below
    return f"{scaled // 10**digits}.{scaled % 10**digits:0{digits}d}"


def _gibibytes(mebibytes: int) -> str:
    if mebibytes < 10 * 1024:
        tenths = (mebibytes * 10 + 512) // 1024
        return f"{tenths // 10}.{tenths % 10}"
    return str((mebibytes + 512) // 1024)
