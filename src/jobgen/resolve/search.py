"""Where the files of specs and sites are, and which site is the default."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Dict, List, Literal, Mapping, NamedTuple, Optional, Tuple

from jobgen.base.errors import JobgenError
from jobgen.base.paths import data_folder
from slipway.base.errors import did_you_mean

CENTRE = Path("/etc/slipway/sites")
DEFAULT = "default"
"""Name of the site that is the default of its folder: a file, or a link to one."""


class DefaultSite(NamedTuple):
    """The site of a command without ``--site``."""

    site: str
    """Its name or path, as for ``--site``."""
    source: str
    """What made it the default: SLIPWAY_SITE, or a file."""


def find_file(name: str, kind: Literal["specs", "sites"], environment: Mapping[str, str]) -> Tuple[str, str]:
    """Return the path of the file ``name``, and its name in a command that runs in the same folder.

    That is ``name`` itself if it is a path; else the file of that name in jobscripts/``kind`` here, which the command
    names by its path; else one of the other folders, which the command names as it was.

    Raises:
        JobgenError: if no folder has a file of that name.
    """
    if name.endswith(".toml") or "/" in name:
        return name, name
    folders = _folders_of(kind, environment)
    if path := _path_of(name, folders):
        return str(path), str(path) if path.parent == folders[0] else name
    known = sorted({known for folder in folders for known in _names(folder)})
    hint = did_you_mean(name, known, cutoff=0.75 if kind == "sites" else 0.5)  # people's own sites are called anything
    if kind == "sites":
        mine = shlex.quote(f"{name[:80]}.toml")
        remedy = f"`jobgen site --detect --output {mine}` drafts one, which --site {mine} takes"
    else:
        remedy = f"{folders[-1]} has them, as files to copy"
    raise JobgenError("unknown-name", f"no {kind[:-1]} {name[:80]!r}.{hint} There are: {', '.join(known)}; {remedy}.")


def default_site(environment: Mapping[str, str]) -> Optional[DefaultSite]:
    """Return the site of a command without ``--site``, or None if there is no default.

    It is the value of SLIPWAY_SITE; else the first ``default.toml`` in the folders of the user and the centre; else
    the only site in these folders.

    Raises:
        JobgenError: if there are several sites without a default, or the default is a link to a missing file.
    """
    if named := environment.get("SLIPWAY_SITE"):
        return DefaultSite(named, "SLIPWAY_SITE")
    folders = _shared_folders(environment)
    path = next((path for path in (folder / f"{DEFAULT}.toml" for folder in folders) if os.path.lexists(path)), None)
    if not path:
        found: Dict[str, Path] = {name: folder / f"{name}.toml" for folder in folders[::-1] for name in _names(folder)}
        if len(found) > 1:
            mine = user_folder(environment) / f"{DEFAULT}.toml"
            raise JobgenError(
                "several-sites",
                f"no --site is given, and none of the sites {', '.join(sorted(found))} is the default: add --site, set "
                f"SLIPWAY_SITE, or link one as {mine}.",
            )
        path = next(iter(found.values()), None)
    if not path:
        return None
    if not os.path.exists(path) and os.path.islink(path):  # noqa: PTH110, PTH114 -- False in a closed folder
        raise JobgenError(
            "cannot-read", f"the default site {path} links to {path.readlink()}, which is missing: correct the link."
        )
    return DefaultSite(_reference(path, environment), str(path))


def user_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the user's sites."""
    home = os.path.expanduser("~")  # noqa: PTH111 -- may lack HOME
    return Path(environment.get("XDG_CONFIG_HOME") or Path(home, ".config"), "slipway", "sites")


def _folders_of(kind: Literal["specs", "sites"], environment: Mapping[str, str]) -> List[Path]:
    """Return the folders that are searched for a file of this kind, in order of precedence; the last is jobgen's own.

    The first folder is in the working folder.
    """
    shared = _shared_folders(environment) if kind == "sites" else []
    return [Path("jobscripts", kind), *shared, data_folder("jobscripts", kind)]


def _shared_folders(environment: Mapping[str, str]) -> List[Path]:
    """Return the folders of the user's and the centre's sites, in order of precedence."""
    named = [Path(folder) for folder in environment.get("SLIPWAY_SITES", "").split(":") if folder]
    return [user_folder(environment), *named, CENTRE]


def _reference(path: Path, environment: Mapping[str, str]) -> str:
    """Return a name or path that stays correct if another site becomes the default: that of a link's target."""
    if os.path.islink(path):  # noqa: PTH114 -- False in a closed folder
        target = path.parent / path.readlink()
        path = Path(os.path.realpath(target.parent), target.name)
    found = _path_of(path.stem, _folders_of("sites", environment)) if path.stem != DEFAULT else None
    if found and os.path.realpath(found) == os.path.realpath(path):
        return path.stem
    return os.path.abspath(path)  # noqa: PTH100 -- keeps links


def _path_of(name: str, folders: List[Path]) -> Optional[Path]:
    """Return the file ``name`` in the first of the folders that has one."""
    return next((folder / f"{name}.toml" for folder in folders if name in _names(folder)), None)


def _names(folder: Path) -> List[str]:
    try:
        return [path.stem for path in folder.glob("*.toml")]
    except OSError:  # another user's
        return []
