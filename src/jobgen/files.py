"""Scripts as files: from names of a description and a site to text, and what is committed compared with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from jobgen.errors import JobgenError, nearest
from jobgen.load import divide, load
from jobgen.model import Job, JobSpec, Site, resolve
from jobgen.render import render
from jobgen.schedulers import scheduler_of

MADE_BY = "# Do not edit: it is made from the two files named here, by "


class Script(NamedTuple):
    """A job and its text."""

    job: Job
    text: str

    def write(self, path: Path) -> None:
        """Write an executable file.

        Raises:
            JobgenError: if that is impossible.
        """
        try:
            path.write_text(self.text, encoding="utf-8")
            if path.is_file():  # root could take /dev/null from everybody else
                path.chmod(0o755)
        except OSError as error:
            raise JobgenError(f"cannot write {path}: {error.strerror}.") from error


def script_of(spec: str, site: str, settings: List[str], *, output: Optional[str]) -> Script:
    """Return the script for the files or names ``spec`` and ``site``.

    Raises:
        JobgenError: if they cannot be read, or make no job.
    """
    spec_path, site_path = _find(spec, "specs"), _find(site, "sites")
    of_spec, of_site = divide(settings)
    description, place = load(spec_path, of_spec, JobSpec), load(site_path, of_site, Site)
    origin = ["jobgen", "render", spec_path, "--site", site_path]
    for setting in settings:
        origin += ["--set", setting]
    job = resolve(description, place, origin=[*origin, *(["--output", output] if output else [])])
    return Script(job, render(job, path=output or description.name + scheduler_of(job).suffix))


def differing(folder: Path, *, parse: Callable[[List[str]], Any]) -> List[Tuple[Path, str]]:
    """Return each script in ``folder`` that is not what the command in its head gives, and that command.

    ``parse`` reads a command line as ``jobgen render`` does.

    Raises:
        JobgenError: if one has no such command, or there is no script at all.
    """
    paths = sorted(path for path in folder.glob("*.*") if path.suffix in {".job", ".pbs", ".sh"})
    if not paths:
        raise JobgenError(f"no script in {folder}: run it in the project's folder, or name theirs.")
    found = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        command = next((line[len(MADE_BY) :] for line in text.splitlines() if line.startswith(MADE_BY)), "")
        if not command:
            raise JobgenError(f"{path} does not say how it was made; move what is not generated elsewhere.")
        given = parse(shlex.split(command)[1:])
        if script_of(given.spec, given.site, given.settings, output=given.output).text != text:
            found.append((path, command))
    return found


def _find(name: str, kind: str) -> str:
    """Return ``name`` if it is a file, else the file of that name in jobscripts/``kind``."""
    if name.endswith(".toml") or "/" in name:
        return name
    folder = Path("jobscripts", kind)
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in known:
        raise JobgenError(f"no {name}.toml in {folder}.{nearest(name, known)} There are: {', '.join(known) or 'none'}.")
    return str(folder / f"{name}.toml")
