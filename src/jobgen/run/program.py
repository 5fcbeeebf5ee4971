"""What ``jobgen run`` starts: a script, a module, a configuration of the trainer, or an earlier run."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Literal, NamedTuple, Optional

from jobgen.base.errors import JobgenError, UsageError
from jobgen.resolve.load import MAX_NAME_LENGTH
from slipway.base.contract import INPUT_CONFIG, JOB_SCRIPT

if TYPE_CHECKING:
    from jobgen.jobs.runs import Run


class Program(NamedTuple):
    """The program of a job."""

    kind: Literal["script", "module", "configuration", "run"]
    path: str
    """The file, the folder of the run, or the module's name."""
    run: Optional[Run] = None
    """The run to continue, if this is one."""

    @property
    def name(self) -> str:
        """The job's name: that of the file without its suffix, with valid characters only."""
        stem = self.path if self.kind == "module" else Path(self.path).stem
        return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-")[:MAX_NAME_LENGTH] or "train"

    @property
    def settings(self) -> Dict[str, str]:
        """The settings of the job script that select this program; "" unsets one."""
        if self.kind == "configuration":
            return {"SLIPWAY_CONFIG": self.path, "SLIPWAY_SCRIPT": ""}
        if self.run:
            kept, config = self.run.files.kept_setting("SLIPWAY_SCRIPT"), Path(self.path, INPUT_CONFIG)
            used = {"SLIPWAY_SCRIPT": kept, "SLIPWAY_CONFIG": str(config) if config.is_file() else ""}
            return {"SLIPWAY_RUN_DIR": self.path, **used}
        return {"SLIPWAY_SCRIPT": f"-m {self.path}" if self.kind == "module" else self.path}

    def __str__(self) -> str:
        """Return it as in a command line."""
        return f"-m {self.path}" if self.kind == "module" else shlex.quote(self.path)


def program_of(path: str = "", *, module: str = "") -> Program:
    """Return the program that ``path`` or ``module`` names.

    Args:
        path: a script ``*.py``, a configuration ``*.toml``, or a run folder.
        module: a Python module's name with its packages, as after ``python -m``.

    Raises:
        UsageError: if both or none are given, or ``module`` is not a module's name.
        JobgenError: if ``path`` is missing, unreadable, or nothing that can be run.
    """
    if bool(path) == bool(module):
        raise UsageError("bad-program", "give a script, a configuration or a run folder; or -m MODULE.")
    if module:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError("bad-program", f"-m {module[:80]!r} is not the name of a Python module.")
        return Program("module", module)
    if os.path.isdir(path):  # noqa: PTH112 -- accepts a NUL
        return _run(path)
    kind: Optional[Literal["script", "configuration"]] = None
    if path.endswith(".py"):
        kind = "script"
    elif path.endswith(".toml"):
        kind = "configuration"
    if not os.path.isfile(path) or not os.access(path, os.R_OK):  # noqa: PTH113
        raise JobgenError("no-script", f"{path} is missing, or not a file that can be read here.{_similar_run(path)}")
    if kind is None:
        raise JobgenError(
            "bad-program", f"{path} is neither a Python script (.py) nor a configuration (.toml) nor a run folder."
        )
    return Program(kind, path)


def _similar_run(name: str) -> str:
    """Return a question that names a run folder of this name or job number; "" if there is none."""
    from jobgen.follow.lookup import output_folder, runs_with_suffix  # noqa: PLC0415 -- needed only on errors

    if not name.isprintable():
        return ""
    candidates = [output_folder() / name, *(run.path for run in runs_with_suffix(name))]
    found = next((path for path in candidates if (path / JOB_SCRIPT).is_file()), None)
    return f" Did you mean the run {found}?" if found else ""


def _run(path: str) -> Program:
    from jobgen.run.earlier_run import free_run  # noqa: PLC0415 -- most jobs are new

    return Program("run", os.path.abspath(path), free_run(path))  # noqa: PTH100 -- keeps links
