"""``jobgen submit``: see what the login node can see, then hand the script to the scheduler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from jobgen.base.errors import JobgenError, UsageError, note
from jobgen.base.job import TRAINS, Job
from jobgen.base.queue import job_id
from jobgen.jobs.owners import shared_library
from jobgen.jobs.precheck import faults_of, find_config, need
from jobgen.render.files import Script, job_of, script_of
from jobgen.resolve.settings import given_in, settings_of
from jobgen.schedulers import scheduler_names, scheduler_of
from slipway.base.errors import message_of

LIBRARY = Path("jobscripts", "lib")
"""Where a clone has the library."""


class Submission(NamedTuple):
    """A job that could start, as far as can be seen from here."""

    job: Job
    arguments: List[str]
    """For what it trains."""
    environment: Dict[str, str]
    library: Optional[str]
    """Folder of the library; None: the script has it inside."""
    faults: Tuple[JobgenError, ...] = ()
    """Of a dry run: why it would be refused now."""

    @property
    def given(self) -> Dict[str, str]:
        """Return the settings that the script must hold, as its environment may not reach the job."""
        given = given_in(self.environment)
        given.update(scheduler_of(self.job.scheduler).settings_of(self.arguments))
        if self.library:
            given["SLIPWAY_LIB"] = self.library
        return given

    @property
    def script(self) -> Script:
        """Return the job's script, with these settings inside."""
        return script_of(self.job, given=self.given, standalone=not self.library)


def submit(
    spec: str, site: str, settings: List[str], arguments: List[str], *, dry_run: bool = False, test_only: bool = False
) -> int:
    """Submit the job of ``spec`` at ``site`` with ``arguments`` for what it trains; return the scheduler's exit code.

    The job's number is the last line of standard output; all prose goes to standard error. A dry run returns the exit
    code with which the same command would refuse the job now; 0 if it would hand it over.

    Raises:
        JobgenError: if the job could not start as things are.
    """
    submission = prepare(spec, site, settings, arguments, own_environment(), dry_run=dry_run, test_only=test_only)
    if dry_run:
        code = tell([submission])
        sys.stdout.write(submission.script.text)
        _show_settings(submission)
        command = scheduler_of(submission.job.scheduler).submission("SCRIPT", arguments)
        note(f"would submit this with: {shlex.join(command)}")
        return code
    return hand_over(submission, submission.script, test_only=test_only).returncode


def prepare(
    spec: str,
    site: str,
    settings: List[str],
    arguments: List[str],
    environment: Dict[str, str],
    *,
    dry_run: bool,
    test_only: bool = False,
) -> Submission:
    """Return the job, once all that it needs has been looked at; with ``dry_run`` what is missing are its faults.

    Raises:
        JobgenError: if the job could not start as things are.
    """
    job = job_of(spec, site, settings, standalone=is_standalone(environment))
    if job.spec.task in TRAINS and (nodes := nodes_asked_for(environment)):
        job = job_of(spec, site, [*settings, *nodes], standalone=is_standalone(environment))
    scheduler = scheduler_of(job.scheduler)
    if not scheduler.has_queue:
        why = f"site {job.site.name} has no scheduler" if scheduler.one_machine else f"{job.spec.name} is no job"
        file = f"{job.spec.name}{scheduler.suffix}"
        command = f"{shlex.join([*job.origin, '--output', file])} && {shlex.join(['bash', file, *arguments])}"
        raise JobgenError("no-scheduler", f"{why}: `{command}` trains here.")
    if test_only and not scheduler.test_option:
        raise JobgenError(
            "unsupported-option", f"--test-only: {scheduler.submit} has no such question: look with --dry-run."
        )
    submission = examine(job, arguments, environment, site=site, dry_run=dry_run)
    if dry_run:
        missing = missing_command(scheduler.submission("SCRIPT", arguments))
        return submission._replace(faults=(*submission.faults, *missing))
    return submission


def tell(submissions: Sequence[Submission]) -> int:
    """Say what a dry run has found, each thing once.

    Returns:
        The exit code of the first fault, with which all of this would be refused now; 0 without any.
    """
    faults = [fault for submission in submissions for fault in submission.faults]
    copies = [_copy_of(submission) for submission in submissions]
    said = [f"would copy {found} to {path}" for found, path in copies if found != path]
    for text in dict.fromkeys([*said, *(f"would be refused now: {message_of(fault)}" for fault in faults)]):
        note(text)
    return faults[0].exit_code if faults else 0


def missing_command(command: Sequence[str]) -> Iterator[JobgenError]:
    """Yield why this machine cannot run the scheduler's ``command``."""
    if not shutil.which(command[0]):
        yield JobgenError(
            "no-scheduler-command",
            f"no {command[0]} on this machine: run this on a login node, or look with --dry-run.",
        )


def nodes_asked_for(environment: Mapping[str, str]) -> List[str]:
    """Return the settings ``NAME=VALUE`` of a spec that the environment changes and that the scheduler has to know."""
    spares, shrink = (environment.get(name, "") for name in ("SLIPWAY_SPARES", "SLIPWAY_SHRINK"))
    settings = [f"spares={spares}"] if spares.isdecimal() else []
    return [*settings, f"shrink={'true' if shrink == '1' else 'false'}"] if shrink in {"0", "1"} else settings


def is_standalone(environment: Mapping[str, str]) -> bool:
    """Return whether a script needs the library inside, as there is none here."""
    return not (environment.get("SLIPWAY_LIB") or LIBRARY.is_dir())


def examine(job: Job, arguments: List[str], environment: Dict[str, str], *, site: str, dry_run: bool) -> Submission:
    """Return the job, once all that it needs has been looked at; with ``dry_run`` what is missing are its faults.

    Args:
        job: what is to be run.
        arguments: for what it trains.
        environment: with its settings.
        site: what the command line calls the job's site.
        dry_run: whether nothing is to be run.

    Raises:
        JobgenError: if the job could not start as things are.
    """
    library = None
    faults = list(faults_of(job, environment, arguments, site=site))
    if not is_standalone(environment):
        library = os.path.abspath(environment.get("SLIPWAY_LIB") or LIBRARY)  # noqa: PTH100 -- keeps links
        remedy = "unset it, or name the folder of the library"
        faults += need("no-library", "SLIPWAY_LIB", f"{library}/job.bash", remedy, file=True)
        trusted = environment.get("SLIPWAY_TRUSTED_FOLDER", "")
        faults += shared_library(Path(library), named=bool(environment.get("SLIPWAY_LIB")), trusted=trusted)
    for fault in faults:
        if not dry_run or isinstance(fault, UsageError):
            raise fault
    submission = Submission(job, arguments, environment, library)
    if dry_run:
        return submission._replace(faults=(*faults, *_of_copy(*_copy_of(submission))))
    _copy_config(*_copy_of(submission))
    return submission


def hand_over(
    submission: Submission, script: Script, *, test_only: bool = False, capture: bool = False
) -> subprocess.CompletedProcess[str]:
    """Submit a temporary file, which the scheduler copies at once; its standard output is shown, or captured.

    Raises:
        JobgenError: if there is no scheduler's command here.
    """
    scheduler = scheduler_of(submission.job.scheduler)
    with tempfile.TemporaryDirectory(prefix="jobgen-") as folder:
        path = Path(folder, submission.job.spec.name + scheduler.suffix)  # the job's log may be named by it
        script.write(path)
        command = scheduler.submission(str(path), submission.arguments)
        for fault in missing_command(command):
            raise fault
        if test_only:
            command.insert(1, scheduler.test_option)
        output = subprocess.PIPE if capture else None
        return subprocess.run(command, env=submission.environment, stdout=output, text=True, check=False)


def hand_over_for_number(submission: Submission, script: Script) -> str:
    """Submit it and return the number of the job; "" if the scheduler does not take it, and has said why.

    Raises:
        JobgenError: if there is no scheduler's command here, or if it names no number.
    """
    done = hand_over(submission, script, capture=True)
    if done.returncode:
        return ""
    words = [word.partition(";")[0] for word in done.stdout.split()]  # of sbatch --parsable: JOB;CLUSTER
    number = next((word for word in reversed(words) if job_id(word)), "")
    if not number:
        raise JobgenError(
            "no-job-number",
            f"the scheduler took a job and named no number: {done.stdout[:200]!r}. Look for it there, and cancel it.",
        )
    return number


def own_environment(*, inside: bool = False) -> Dict[str, str]:
    """Return the environment without what is a job's, where this is run inside one.

    That is what its script has exported (see lib/job.bash), and what its scheduler says of it, unless it is that very
    job which is to be used: ``inside``.
    """
    environment: Mapping[str, str] = os.environ
    for name in [] if inside else scheduler_names():
        environment = scheduler_of(name).without_job(environment)
    exported = environment.get("SLIPWAY_EXPORTED", "").splitlines()
    pairs = dict(line.partition("=")[::2] for line in exported)
    return {
        name: value for name, value in environment.items() if name != "SLIPWAY_EXPORTED" and pairs.get(name) != value
    }


def _show_settings(submission: Submission) -> None:
    """Print a line for each setting of the job: its value, and who says so."""
    for setting in settings_of(submission.job, submission.environment):
        value = "(by variables of the nodes)" if setting.value is None else shlex.quote(setting.value)
        note(f"{setting.name}={value} ({setting.source})")


def _copy_of(submission: Submission) -> Tuple[Path, Path]:
    """Return the configuration that is found, and where the job reads it: two files if jobgen has to copy its own."""
    job, environment = submission.job, submission.environment
    path = Path(environment.get("SLIPWAY_CONFIG") or job.spec.config)
    reads = job.spec.task in TRAINS and not environment.get("SLIPWAY_SCRIPT")
    return (find_config(path) if reads else path), path


def _of_copy(found: Path, path: Path) -> Iterator[JobgenError]:
    """Yield why ``found`` cannot be copied to ``path``, as far as can be seen without doing it."""
    folder = path.parent if os.path.lexists(path.parent) else path.parent.parent
    if found != path and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        yield JobgenError("cannot-write", f"SLIPWAY_CONFIG: cannot write {path}: {folder} is no folder to write into.")


def _copy_config(found: Path, path: Path) -> None:
    """Copy a configuration that jobgen brings along to where it is missing."""
    if found == path:
        return
    try:
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(found, path)
    except OSError as error:
        raise JobgenError("cannot-write", f"SLIPWAY_CONFIG: cannot write {path}: {error.strerror}.") from error
    note(f"copied {found} to {path}: change it as you like")
