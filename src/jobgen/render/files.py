"""Job script files: render them from a spec and a site, and compare committed ones with that."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any, Callable, List, Literal, Mapping, NamedTuple, Optional, Tuple

from jobgen.base.errors import JobgenError
from jobgen.base.job import Job, JobSpec, Site
from jobgen.base.paths import data_folder
from jobgen.render.header import origin_of, version_of
from jobgen.render.script import NOTHING, render
from jobgen.resolve.load import divide, load
from jobgen.resolve.resolve import resolve
from jobgen.schedulers import scheduler_names, scheduler_of
from slipway.base.bounded_read import read_head
from slipway.base.errors import did_you_mean

LIMIT = 1 << 20
"""Maximum size of a script in bytes: four times the longest standalone script."""


def write_script(path: Path, text: str) -> None:
    """Write a script to the executable file ``path``.

    Raises:
        JobgenError: if that is impossible.
    """
    try:
        path.write_text(text, encoding="utf-8")
        if path.is_file():  # root could take /dev/null from everybody else
            path.chmod(0o755)
    except OSError as error:
        raise JobgenError("cannot-write", f"cannot write {path}: {error.strerror}.") from error


def job_of(spec: str, site: str, settings: List[str], *, output: Optional[str] = None, standalone: bool = False) -> Job:
    """Return the job of the files or names ``spec`` and ``site``.

    Raises:
        JobgenError: if they cannot be read, or make no job.
    """
    spec_path, spec_name = _find(spec, "specs")
    site_path, site_name = _find(site, "sites")
    of_spec, of_site = divide(settings)
    loaded = load(spec_path, of_spec, JobSpec), load(site_path, of_site, Site)
    origin = ["jobgen", "render", spec_name, "--site", site_name, *(["--standalone"] if standalone else [])]
    for setting in settings:
        origin += ["--set", setting]
    return resolve(*loaded, origin=[*origin, *(["--output", output] if output else [])])


def site_of(site: str, settings: List[str]) -> Site:
    """Return the site of the file or name ``site``, with ``settings`` of site fields.

    Raises:
        JobgenError: if it cannot be read.
    """
    return load(_find(site, "sites")[0], settings, Site)


def spec_of(spec: str, settings: List[str]) -> JobSpec:
    """Return the spec of the file or name ``spec``, with ``settings`` of its fields.

    Raises:
        JobgenError: if it cannot be read.
    """
    return load(_find(spec, "specs")[0], settings, JobSpec)


def script_of(
    job: Job, *, output: Optional[str] = None, standalone: bool = False, given: Mapping[str, str] = NOTHING
) -> str:
    """Return the script of ``job``, which will be the file ``output``, with the settings ``given`` to a submission.

    Raises:
        JobgenError: for values that no script can hold.
    """
    path = output or job.spec.name + scheduler_of(job.scheduler).suffix
    return render(job, path=path, given=given, standalone=standalone)


class Origin(NamedTuple):
    """The command in a script's header that generates it."""

    spec: str
    site: str
    settings: List[str]


def origin_in(script: Path) -> Origin:
    """Return the origin of a job script, of which a run folder has a copy.

    Raises:
        JobgenError: if the script cannot be read, or its header has no command of `jobgen render`.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("spec")
    parser.add_argument("--site")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    given, _ = parser.parse_known_args(_rendering(script)[1][2:])
    return Origin(given.spec, given.site, given.settings)


class Stale(NamedTuple):
    """A script that differs from the output of the command in its header."""

    path: Path
    command: str
    """The command."""
    version: str
    """Version of jobgen in its header; "" if none."""
    difference: List[str]
    """The differences, as a unified diff."""


def stale_scripts(paths: List[str], *, parse: Callable[[List[str]], Any]) -> List[Stale]:
    """Return the stale ones of the scripts ``paths``, and of those in the folders ``paths``.

    ``parse`` reads a command line as ``jobgen render`` does.

    Raises:
        JobgenError: if one cannot be read or names no such command, or there is no script at all.
    """
    compared = [_compare(script, parse) for path in paths for script in _scripts_of(Path(path))]
    return [stale for stale in compared if stale.difference]


def _scripts_of(path: Path) -> List[Path]:
    """Return ``path``, or the scripts in the folder ``path``."""
    if not path.is_dir():
        return [path]
    suffixes = {scheduler_of(name).suffix for name in scheduler_names()}
    paths = sorted(file for file in path.glob("*.*") if file.suffix in suffixes and file.is_file())
    if not paths:
        raise JobgenError("no-job-script", f"no script in {path}: run it in the project's folder, or name theirs.")
    return paths


def _rendering(path: Path) -> Tuple[str, List[str]]:
    """Return a script's text, and the words of the command that generates it."""
    try:
        text = read_head(str(path), limit=LIMIT).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise JobgenError("cannot-read", f"cannot read {path}: {getattr(error, 'strerror', error)}.") from error
    try:
        words = shlex.split(origin_of(text))
    except ValueError:  # a quote is open
        words = []
    if words[:2] != ["jobgen", "render"]:
        raise JobgenError(
            "no-job-script", f"{path} has no line `Generated:`, so it is not a script of `jobgen render`."
        )
    return text, words


def _compare(path: Path, parse: Callable[[List[str]], Any]) -> Stale:
    from difflib import unified_diff  # noqa: PLC0415 -- rendering needs none of it

    text, words = _rendering(path)
    given = parse(words[1:])
    chosen = {"output": given.output, "standalone": given.standalone}
    made = script_of(job_of(given.spec, given.site, given.settings, **chosen), **chosen)
    lines = unified_diff(text.splitlines(), made.splitlines(), str(path), "now", n=0, lineterm="")
    return Stale(path, origin_of(text), version_of(text), list(lines))


def folders_of(kind: Literal["specs", "sites"]) -> List[Path]:
    """Return the folders that are searched for a file of this kind, in order of precedence.

    Sites are the user's and the centre's too: in ~/.config/slipway/sites, those that SLIPWAY_SITES names, and
    /etc/slipway/sites. The last folder is jobgen's own.
    """
    folders = [Path("jobscripts", kind)]
    if kind == "sites":
        config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 -- may lack HOME
        named = [Path(folder) for folder in os.environ.get("SLIPWAY_SITES", "").split(":") if folder]
        folders += [Path(config, "slipway", "sites"), *named, Path("/etc/slipway/sites")]
    return [*folders, data_folder("jobscripts", kind)]


def _find(name: str, kind: Literal["specs", "sites"]) -> Tuple[str, str]:
    """Return the path of the file ``name``, and its name in a command that runs in the same folder.

    That is ``name`` itself if it is a path; else the file of that name in jobscripts/``kind`` here, which the command
    names by its path; else one of the other folders, which the command names as it was.
    """
    if name.endswith(".toml") or "/" in name:
        return name, name
    folders = folders_of(kind)
    for folder in folders:
        if name in _names(folder):
            path = str(folder / f"{name}.toml")
            return path, path if folder == folders[0] else name
    known = sorted({known for folder in folders for known in _names(folder)})
    hint = did_you_mean(name, known, cutoff=0.75 if kind == "sites" else 0.5)  # people's own sites are called anything
    if kind == "sites":
        mine = shlex.quote(f"{name[:80]}.toml")
        remedy = f"`jobgen site --detect --output {mine}` drafts one, which --site {mine} takes"
    else:
        remedy = f"{folders[-1]} has them, as files to copy"
    raise JobgenError("unknown-name", f"no {kind[:-1]} {name[:80]!r}.{hint} There are: {', '.join(known)}; {remedy}.")


def _names(folder: Path) -> List[str]:
    try:
        return [path.stem for path in folder.glob("*.toml")]
    except OSError:  # another user's
        return []
