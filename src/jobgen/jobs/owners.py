"""Who may write what a job runs: the rule of jobscripts/lib/owners.bash, before a job waits in a queue for it."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
import subprocess
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from jobgen.base.errors import JobgenError


def shared(paths: List[Path], *, trusted: str, owner: Optional[int] = None) -> Iterator[JobgenError]:
    """Yield the first of ``paths`` that somebody else owns or may write, as an error.

    Args:
        paths: what is to be run; the first one holds the others. What is not there is left to others to miss.
        trusted: the setting SLIPWAY_TRUSTED_FOLDER.
        owner: the number of a user who may own them, besides this one and root.
    """
    if trusted and Path(trusted).resolve() in [paths[0].resolve(), *paths[0].resolve().parents]:
        return
    is_private = functools.lru_cache(maxsize=None)(_is_private)  # asked once for all of them
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            continue
        by_group = found.st_mode & stat.S_IWGRP and (not is_private(found.st_gid, found.st_uid) or _has_acl(path))
        if found.st_uid not in {os.geteuid(), 0, owner} or found.st_mode & stat.S_IWOTH or by_group:
            yield JobgenError(
                "writable-by-others",
                f"{path} would be run, and others own it or can write it ({stat.filemode(found.st_mode)}, user "
                f"{found.st_uid}, group {found.st_gid}): look into it, then chmod -R go-w {paths[0]}, or, on a disk "
                "with one mode for all files, set SLIPWAY_TRUSTED_FOLDER.",
            )
            return


def shared_library(folder: Path, *, named: bool, trusted: str) -> Iterator[JobgenError]:
    """Yield why a job would not run the library ``folder``, as an error.

    Args:
        folder: of the library.
        named: whether the user has named it, and with it its owner, rather than found it in the current folder.
        trusted: the setting SLIPWAY_TRUSTED_FOLDER.
    """
    folder = folder.resolve()
    try:
        if not folder.is_dir():
            return
        owner = folder.stat().st_uid if named else None
        files = sorted(folder.iterdir())
    except OSError as error:
        yield JobgenError("no-library", f"cannot read the library {folder}: {error.strerror}.")
        return
    yield from shared([folder, *files], trusted=trusted, owner=owner)


def _is_private(group: int, user: int) -> bool:
    """Return whether the group is the user's own: the primary one, of the same name, without another member.

    Nor may it be the primary group of another user, as far as `getent passwd` lists users within 10 s. Root has none.
    """
    try:
        account = pwd.getpwuid(user)
        found = grp.getgrgid(group)
    except KeyError:
        return False
    name = account.pw_name
    if user == 0 or account.pw_gid != group or found.gr_name != name or {*found.gr_mem} - {name}:
        return False
    return all(other == user for other, its_group in _listed_users() if its_group == group)


def _listed_users() -> Iterator[Tuple[int, int]]:
    """Yield the numbers of each listed user and of its primary group.

    Not by ``pwd.getpwall``, as a directory service can take minutes to list all.
    """
    try:
        listed = subprocess.run(["getent", "passwd"], stdout=subprocess.PIPE, timeout=10, check=False).stdout
    except subprocess.TimeoutExpired as error:
        listed = error.output or b""
    except OSError:
        return
    for line in os.fsdecode(listed).splitlines():
        _, _, user, group, *_ = *line.split(":"), "", "", "", ""
        if user.isdigit() and group.isdigit():
            yield int(user), int(group)


def _has_acl(path: Path) -> bool:
    """Return whether users or groups besides its own have rights to ``path``."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False
