"""Memory limits and usage of this process, for the message after a process was killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
UNLIMITED = 1 << 60
"""Limits of at least this many bytes count as none: without a limit, cgroup v1 reports a number close to 2**63."""


def describe_memory(root: Path = Path("/")) -> list[str]:
    """Return a clause for the nearest control group with a limit, and one for the machine.

    Args:
        root: root of the file system.
    """
    return [*_control_group(root), *_machine(root)]


def available_memory() -> int:
    """Return the bytes that this process can still allocate, on the machine and in its control groups."""
    root = Path("/")
    found = [(_field(root / "proc/meminfo", "MemAvailable:") or 0) * 1024]
    for folder, names in _groups(root):
        limit, used = (_number(folder / name) for name in names[:2])
        if limit is not None and used is not None:
            found.append(max(0, limit - used))
    return min(found)


def describe_shared_memory() -> list[str]:
    """Return a clause about free space in /dev/shm; the space of a killed process counts as free."""
    try:
        usage = shutil.disk_usage("/dev/shm")  # noqa: S108 -- only queries its size
    except OSError:
        return []
    free, total = usage.free / MIB, usage.total / MIB
    return [f"workers hand over batches in /dev/shm, of which {free:.1f} of {total:.1f} MiB are free"]


def _control_group(root: Path) -> Iterator[str]:
    """Yield a clause for the nearest control group with a limit (Linux, cgroups(7)), of version 2 or 1."""
    for folder, names in _groups(root):
        limit, used, peak = (_number(folder / name) for name in names[:3])
        if limit is None or limit >= UNLIMITED:
            continue
        killed = _field(folder / names[3], "oom_kill")
        text = f"the memory limit of the control group {folder.name or '/'} is {limit // MIB} MiB"
        text += f", of which at most {peak // MIB} were used" if peak else f", of which {(used or 0) // MIB} are used"
        if killed:
            text += f"; the kernel killed {killed} process(es) there because memory ran out"
        yield text
        return


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str, str]]]:
    """Yield each folder of this process's control group and its parents, with files of limit, use, peak and kills."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root / "sys/fs/cgroup"
            names = ("memory.max", "memory.current", "memory.peak", "memory.events")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "memory.max_usage_in_bytes",
                "memory.oom_control",
            )
        else:
            continue
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):
            if not folder.is_relative_to(top):
                break
            yield folder, names


def _machine(root: Path) -> Iterator[str]:
    available = _field(root / "proc/meminfo", "MemAvailable:")
    if available is not None:
        yield f"the machine has {available // 1024} MiB of memory available"


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _field(path: Path, name: str) -> int | None:
    """Return the number after ``name`` in a file of lines ``NAME NUMBER``; None if there is none."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)
