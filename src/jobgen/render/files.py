"""Job script files: render them from a spec and a site, and compare committed ones with that."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from jobgen.base.errors import JobgenError, note
from jobgen.base.job import Job, JobSpec, Site
from jobgen.render.header import origin_of, version_of
from jobgen.render.script import NOTHING, render
from jobgen.resolve.load import divide, load
from jobgen.resolve.resolve import resolve
from jobgen.resolve.search import default_site, find_file
from jobgen.schedulers import scheduler_names, scheduler_of
from slipway.base.bounded_read import read_head

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


def site_or_default(site: Optional[str]) -> str:
    """Return ``site``; if it is None, the default site, and print which one that is.

    Raises:
        JobgenError: if there is no default site.
    """
    if site is not None:
        return site
    found = default_site(os.environ)
    if not found:
        raise JobgenError(
            "no-site", "no --site is given, and there is no default site: `jobgen site --detect --save` makes one."
        )
    note(f"site {found.site}, the default" + (f" ({found.source})" if found.source != found.site else ""))
    return found.site


def job_of(spec: str, site: str, settings: List[str], *, output: Optional[str] = None, standalone: bool = False) -> Job:
    """Return the job of the files or names ``spec`` and ``site``.

    Raises:
        JobgenError: if they cannot be read, or make no job.
    """
    spec_path, spec_name = find_file(spec, "specs", os.environ)
    site_path, site_name = find_file(site, "sites", os.environ)
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
    return load(find_file(site, "sites", os.environ)[0], settings, Site)


def spec_of(spec: str, settings: List[str]) -> JobSpec:
    """Return the spec of the file or name ``spec``, with ``settings`` of its fields.

    Raises:
        JobgenError: if it cannot be read.
    """
    return load(find_file(spec, "specs", os.environ)[0], settings, JobSpec)


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
    standalone: bool = False
    output: Optional[str] = None


def origin_in(script: Path, *, folder: str) -> Origin:
    """Return the origin of a job script, with paths relative to ``folder`` made absolute.

    Raises:
        JobgenError: if the script cannot be read, or its header has no command of `jobgen render`.
    """
    origin = _origin_and_text(script)[0]
    spec, site = (
        str(Path(folder, name)) if "/" in name or name.endswith(".toml") else name
        for name in (origin.spec, origin.site)
    )
    return origin._replace(spec=spec, site=site)


class Stale(NamedTuple):
    """A script that differs from the output of the command in its header."""

    path: Path
    command: str
    """The command."""
    version: str
    """Version of jobgen in its header; "" if none."""
    difference: List[str]
    """The differences, as a unified diff."""


def stale_scripts(paths: List[str]) -> List[Stale]:
    """Return the stale ones of the scripts ``paths``, and of those in the folders ``paths``.

    Raises:
        JobgenError: if one cannot be read or names no such command, or there is no script at all.
    """
    compared = [_compare(script) for path in paths for script in _scripts_of(Path(path))]
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


def _origin_and_text(path: Path) -> Tuple[Origin, str]:
    """Return a script's origin and its text."""
    try:
        text = read_head(str(path), limit=LIMIT).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise JobgenError("cannot-read", f"cannot read {path}: {getattr(error, 'strerror', error)}.") from error
    try:
        words = shlex.split(origin_of(text))
    except ValueError:  # a quote is open
        words = []
    given, unknown = _origin_parser().parse_known_args(words[2:])
    if words[:2] != ["jobgen", "render"] or unknown or not (given.spec and given.site):
        raise JobgenError(
            "no-job-script",
            f"{path} has no line `Generated:` with a spec and a site, so it is not a script of `jobgen render`.",
        )
    return Origin(**vars(given)), text


def _origin_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("spec", nargs="?", default="")
    parser.add_argument("--site", default="")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--output")
    return parser


def _compare(path: Path) -> Stale:
    from difflib import unified_diff  # noqa: PLC0415 -- rendering needs none of it

    origin, text = _origin_and_text(path)
    chosen: Dict[str, Any] = {"output": origin.output, "standalone": origin.standalone}
    made = script_of(job_of(origin.spec, origin.site, origin.settings, **chosen), **chosen)
    lines = unified_diff(text.splitlines(), made.splitlines(), str(path), "now", n=0, lineterm="")
    return Stale(path, origin_of(text), version_of(text), list(lines))
