"""Checks that other users cannot write files that a job runs: the rule of jobscripts/lib/owners.bash as a precheck."""

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
    """Yield an error for the first of ``paths`` that another user owns or can write.

    Args:
        paths: files to run; the first path is the folder of the others. Missing paths are skipped.
        trusted: the setting SLIPWAY_TRUSTED_FOLDER.
        owner: ID of a user who may own them, besides the current user and root.
    """
    if trusted and Path(trusted).resolve() in [paths[0].resolve(), *paths[0].resolve().parents]:
        return
    is_private = functools.cache(_is_private)  # look up each group once
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            continue
        by_group = found.st_mode & stat.S_IWGRP and (not is_private(found.st_gid, found.st_uid) or _has_acl(path))
        if found.st_uid not in {os.geteuid(), 0, owner} or found.st_mode & stat.S_IWOTH or by_group:
            yield JobgenError(
                "writable-by-others",
                f"the job would run {path}, which other users own or can write ({stat.filemode(found.st_mode)}, user "
                f"{found.st_uid}, group {found.st_gid}): check its contents, then run chmod -R go-w {paths[0]}; on a "
                "disk with one mode for all files, set SLIPWAY_TRUSTED_FOLDER.",
            )
            return


def check_library_owners(folder: Path, *, named: bool, trusted: str) -> Iterator[JobgenError]:
    """Yield an error if a job would refuse to run the script library in ``folder``.

    Args:
        folder: folder of the script library.
        named: whether the user named the folder, and so trusts its owner; False for the library of the current folder.
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
    """Return whether ``group`` is the user's private group: primary, of the same name, without other members.

    It must not be the primary group of another user either, as far as `getent passwd` lists users within 10 s. Root
    has no private group.
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
    """Yield the user ID and primary group ID of each listed user.

    ``pwd.getpwall`` has no time limit, and a directory service can take minutes to list all users.
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
    """Return whether ``path`` has a POSIX ACL, which can give other users or groups access."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False
