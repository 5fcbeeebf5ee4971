"""Whether the nodes of a job see a path of this machine, from its file system."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from jobgen.base.errors import JobgenError, warn
from jobgen.base.job import Job
from jobgen.resolve.settings import settings_of
from jobgen.schedulers import scheduler_of

MOUNTS = Path("/proc/self/mountinfo")
EXPORTS = Path("/var/lib/nfs/etab")
"""Folders that this machine exports by NFS."""
MEMORY = {"tmpfs", "ramfs", "devtmpfs", "rootfs"}
"""File systems in the memory of one machine."""
DISKS = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "xfs", "zfs"}
"""File systems on a disk of one machine, which other machines see only if it exports them."""
NETWORK = {
    "9p", "acfs", "afs", "autofs", "beegfs", "ceph", "cifs", "dvs", "fhgfs", "fuse", "gfs2", "gpfs", "lustre", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "virtiofs", "wekafs",
}  # fmt: skip
"""File systems that several machines can mount; fuse is also that of types such as fuse.sshfs."""
OWN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 -- named, not used
"""Folders that each node has separately."""


class Mount(NamedTuple):
    """A mounted file system."""

    folder: str
    kind: str
    """Type, as in ``mount -t``; "": unknown."""


class Place(NamedTuple):
    """Location of a path with respect to the nodes."""

    folder: str
    """The mount point, or the folder that each node has separately."""
    kind: str
    is_private: bool = False
    """Whether the nodes cannot see it."""
    is_local: bool = False
    """Whether the nodes can see it only if this machine exports it."""


def check_shared(
    path: str, what: str, job: Job, environment: Mapping[str, str], *, instead: str = ""
) -> Iterator[JobgenError]:
    """Yield an error if the nodes cannot see ``path``, which ``what`` names; warn if they may not see it.

    A site without a queue runs the job on this machine, and is not checked.

    Args:
        path: a path on this machine.
        what: what it is, as the message's first words.
        job: the job that needs it.
        environment: environment variables with the job's settings.
        instead: an alternative to it, which ends the error.
    """
    place = find_place(path, job, environment)
    where = f"{place.folder} ({place.kind})" if place.kind else place.folder
    if place.is_private:
        text = f"{what}: {path} is in {where}, which the nodes do not share: put it on a disk that all nodes share"
        yield JobgenError("not-shared", f"{text}{f', or {instead}' if instead else ''}.")
    elif place.is_local:
        text = f"{what}: {path} is in {where}, a disk of this machine; the job needs it under this path on its nodes"
        warn("not-shared", text)


def find_place(path: str, job: Job, environment: Mapping[str, str]) -> Place:
    """Return the place of ``path``, and of the path to which it links: the one that the nodes see less."""
    if not scheduler_of(job.site.scheduler).has_queue:
        return Place("/", "")
    real = os.path.realpath(path)  # also mounts it, if it is mounted automatically
    if any(_is_below(real, folder) for folder in job.site.shared):
        return Place("/", "")
    local_disk = next(row.value for row in settings_of(job, environment) if row.name == "SLIPWAY_LOCAL_DISK")
    own_folders = [*OWN_FOLDERS, *([os.path.abspath(local_disk)] if local_disk else [])]  # noqa: PTH100 -- keeps links
    mounts, exported = _this_machine()
    given, linked = (
        place_of(form, mounts, exported, own_folders)
        for form in (os.path.abspath(path), real)  # noqa: PTH100 -- keeps links
    )
    return given if given.is_private or not (linked.is_private or linked.is_local) else linked


def place_of(path: str, mounts: Sequence[Mount], exported: Sequence[str], own_folders: Sequence[str]) -> Place:
    """Return the place of an absolute path.

    Args:
        path: an absolute path without links.
        mounts: the mounted file systems, in the order of mounting.
        exported: folders that this machine exports.
        own_folders: folders that each node has separately, unless a network file system is mounted there.
    """
    above = [mount for mount in mounts if _is_below(path, mount.folder)]
    mount = max(reversed(above), key=lambda found: len(found.folder), default=Mount("/", ""))
    if mount.kind.partition(".")[0] in NETWORK:
        return Place(*mount)
    if mount.kind in MEMORY:
        return Place(*mount, is_private=True)
    own: Optional[str] = next((folder for folder in own_folders if _is_below(path, folder)), None)
    if own:
        return Place(own, "", is_private=True)
    is_exported = any(_is_below(path, folder) for folder in exported)
    return Place(*mount, is_local=mount.kind in DISKS and not is_exported)


def mounts_in(text: str) -> List[Mount]:
    """Return the file systems in the text of /proc/self/mountinfo (man 5 proc_pid_mountinfo)."""
    found = []
    for line in text.split("\n"):
        mounted, separator, source = line.partition(" - ")
        fields = mounted.split(" ")
        if separator and len(fields) > 4:  # noqa: PLR2004 -- the fifth field is the mount point
            found.append(Mount(_unescaped(fields[4]), source.split(" ")[0]))
    return found


def exports_in(text: str) -> List[str]:
    """Return the folders in the text of /var/lib/nfs/etab: the first word of each line (man 8 exportfs)."""
    return [_unescaped(line.split()[0]) for line in text.split("\n") if line.strip()]


@lru_cache(maxsize=1)
def _this_machine() -> Tuple[List[Mount], List[str]]:
    return mounts_in(_text(MOUNTS)), exports_in(_text(EXPORTS))


def _text(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:  # not Linux, or not an NFS server
        return ""


def _unescaped(word: str) -> str:
    r"""Return a path in which the kernel wrote blanks as ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
