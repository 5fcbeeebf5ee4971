"""Job scripts: from the names of a spec and a site to text, and what is committed compared with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from jobgen.data import data_folder
from jobgen.errors import JobgenError, nearest
from jobgen.header import origin_of
from jobgen.load import divide, load
from jobgen.model import Job, JobSpec, Site
from jobgen.render import render
from jobgen.resolve import resolve
from jobgen.schedulers import scheduler_names, scheduler_of


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


def script_of(job: Job, *, output: Optional[str] = None, standalone: bool = False) -> Script:
    """Return the script of ``job``, which will be the file ``output``.

    Raises:
        JobgenError: for values that no script can hold.
    """
    path = output or job.spec.name + scheduler_of(job.scheduler).suffix
    return Script(job, render(job, path=path, standalone=standalone))


def differing(folder: Path, *, parse: Callable[[List[str]], Any]) -> List[Tuple[Path, str]]:
    """Return each script in ``folder`` that is not what the command in its header gives, and that command.

    ``parse`` reads a command line as ``jobgen render`` does.

    Raises:
        JobgenError: if one has no such command, or there is no script at all.
    """
    suffixes = {scheduler_of(name).suffix for name in scheduler_names()}
    paths = sorted(path for path in folder.glob("*.*") if path.suffix in suffixes and path.is_file())
    if not paths:
        raise JobgenError(f"no script in {folder}: run it in the project's folder, or name theirs.")
    found = []
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        command = origin_of(text)
        try:
            words = shlex.split(command)
        except ValueError:  # a quote is open
            words = []
        if words[:2] != ["jobgen", "render"]:
            raise JobgenError(f"{path} does not say how it was generated; move what is not generated elsewhere.")
        given = parse(words[1:])
        chosen = {"output": given.output, "standalone": given.standalone}
        if script_of(job_of(given.spec, given.site, given.settings, **chosen), **chosen).text != text:
            found.append((path, command))
    return found


def _find(name: str, kind: str) -> Tuple[str, str]:
    """Return the path of the file ``name``, and what a command in the same folder calls it.

    That is ``name`` itself if it is a path; else the file of that name in jobscripts/``kind`` here, which the command
    names by its path; else the one that jobgen brings along, which the command names as it was.
    """
    if name.endswith(".toml") or "/" in name:
        return name, name
    here, own = Path("jobscripts", kind), data_folder("jobscripts", kind)
    for folder in (here, own):
        if name in _names(folder):
            path = str(folder / f"{name}.toml")
            return path, path if folder == here else name
    known = sorted({*_names(here), *_names(own)})
    example = next((folder for folder in (here, own) if "example" in _names(folder)), own) / "example.toml"
    remedy = f"; copy {example} to make one" if kind == "sites" else f"; {own} has them, as files to copy"
    raise JobgenError(
        f"no {kind[:-1]} {name[:80]!r}.{nearest(name, known)} There are: {', '.join(known) or 'none'}{remedy}."
    )


def _names(folder: Path) -> List[str]:
    return [path.stem for path in folder.glob("*.toml")]
