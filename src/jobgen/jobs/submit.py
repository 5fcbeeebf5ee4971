"""``jobgen submit``: check a job on the login node, then submit its script to the scheduler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from jobgen.base.errors import JobgenError, UsageError, note, warn
from jobgen.base.job import TRAINS, Job
from jobgen.base.queue import job_id
from jobgen.jobs.owners import check_library_owners
from jobgen.jobs.precheck import find_config, need, precheck
from jobgen.render.files import job_of, script_of, write_script
from jobgen.resolve.settings import settings_in, settings_of
from jobgen.schedulers import scheduler_names, scheduler_of
from slipway.base.errors import error_line

FOLDER = "jobgen-"
"""Start of the name of the temporary folder from which a script is submitted."""
LIBRARY = Path("jobscripts", "lib")
"""Folder of the script library in a clone."""


class Submission(NamedTuple):
    """A checked job, ready to submit."""

    job: Job
    arguments: List[str]
    """Arguments of the training program."""
    environment: Dict[str, str]
    library: Optional[str]
    """Folder of the script library; None: the script includes it."""
    faults: Tuple[JobgenError, ...] = ()
    """For a dry run: the errors that the real command would report now."""
    variables: Mapping[str, str] = MappingProxyType({})
    """Further variables for the job."""

    @property
    def given(self) -> Dict[str, str]:
        """Variables to write into the script, because the scheduler may not pass the environment to the job."""
        given = {**settings_in(self.environment), **self.variables}
        given.update(scheduler_of(self.job.scheduler).settings_of(self.arguments))
        if self.library:
            given["SLIPWAY_LIB"] = self.library
        return given

    @property
    def script(self) -> str:
        """The job's script with these settings."""
        return script_of(self.job, given=self.given, standalone=not self.library)


def submit(spec: str, site: str, settings: List[str], arguments: List[str], *, dry_run: bool, test_only: bool) -> int:
    """Submit the job of ``spec`` at ``site`` and return the exit code of the scheduler's command.

    ``arguments`` go to the training program. The last line of standard output is the job number; messages go to
    standard error. A dry run returns the exit code that the real command would return because of errors; 0 without.

    Raises:
        JobgenError: if a check fails.
    """
    submission = prepare(
        spec, site, settings, arguments, environment_without_job(), dry_run=dry_run, test_only=test_only
    )
    if dry_run:
        command = scheduler_of(submission.job.scheduler).submission("SCRIPT", arguments)
        return show(submission, command)
    return run_submit_command(submission, submission.script, test_only=test_only).returncode


def show(submission: Submission, command: Sequence[str]) -> int:
    """Print the script, its settings, errors and the ``command`` for a dry run; return the exit code of the errors.

    A terminal gets no script, which has thousands of lines.
    """
    code, script = tell([submission]), submission.script
    if sys.stdout.isatty():
        note(f"the script has {script.count(chr(10))} lines: redirect standard output to a file to read it")
    else:
        sys.stdout.write(script)
    _show_settings(submission)
    note(f"would run: {shlex.join(command)}")
    return code


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
    """Resolve a job and check it; with ``dry_run``, return errors in ``faults`` instead of raising them.

    Raises:
        JobgenError: if a check fails.
    """
    job = job_of(spec, site, settings, standalone=is_standalone(environment))
    if job.spec.task in TRAINS and (nodes := node_settings(environment)):
        job = job_of(spec, site, [*settings, *nodes], standalone=is_standalone(environment))
    scheduler = scheduler_of(job.scheduler)
    if not scheduler.has_queue:
        why = (
            f"site {job.site.name} has no scheduler"
            if scheduler.one_machine
            else f"{job.spec.name} is a client, not a job"
        )
        file = f"{job.spec.name}{scheduler.suffix}"
        command = f"{shlex.join([*job.origin, '--output', file])} && {shlex.join(['bash', file, *arguments])}"
        raise JobgenError("no-scheduler", f"{why}: run `{command}` instead.")
    if test_only and not scheduler.test_option:
        raise JobgenError("unsupported-option", f"--test-only: {scheduler.submit} has no such option: use --dry-run.")
    submission = examine(job, arguments, environment, site=site, dry_run=dry_run)
    if dry_run:
        missing = check_command(scheduler.submission("SCRIPT", arguments))
        return submission._replace(faults=(*submission.faults, *missing))
    return submission


def tell(submissions: Sequence[Submission]) -> int:
    """Print the findings of a dry run, each once.

    Returns:
        The exit code of the first error; 0 without errors.
    """
    faults = [fault for submission in submissions for fault in submission.faults]
    copies = [_config_paths(submission) for submission in submissions]
    said = [f"would copy {found} to {path}" for found, path in copies if found != path]
    for text in dict.fromkeys([*said, *(f"would fail now: {error_line(fault)}" for fault in faults)]):
        note(text)
    return faults[0].exit_code if faults else 0


def check_command(command: Sequence[str]) -> Iterator[JobgenError]:
    """Yield an error if the scheduler's ``command`` is not on PATH."""
    if not shutil.which(command[0]):
        yield JobgenError(
            "no-scheduler-command",
            f"{command[0]} is not on this machine: run this on a login node, or use --dry-run.",
        )


def node_settings(environment: Mapping[str, str]) -> List[str]:
    """Return SLIPWAY_SPARES and SLIPWAY_SHRINK as spec settings ``NAME=VALUE``: they change the scheduler's request."""
    spares, shrink = (environment.get(name, "") for name in ("SLIPWAY_SPARES", "SLIPWAY_SHRINK"))
    settings = [f"spares={spares}"] if spares.isdecimal() else []
    return [*settings, f"shrink={'true' if shrink == '1' else 'false'}"] if shrink in {"0", "1"} else settings


def is_standalone(environment: Mapping[str, str]) -> bool:
    """Return whether the script must include the script library because none is available here."""
    return not (environment.get("SLIPWAY_LIB") or LIBRARY.is_dir())


def examine(job: Job, arguments: List[str], environment: Dict[str, str], *, site: str, dry_run: bool) -> Submission:
    """Check a job and copy its configuration if needed; with ``dry_run``, return errors in ``faults`` and copy nothing.

    Args:
        job: the job to check.
        arguments: arguments of the training program.
        environment: environment variables with the job's settings.
        site: the value of ``--site``.
        dry_run: whether only to collect errors. A UsageError is raised anyway.

    Raises:
        JobgenError: if a check fails.
    """
    library = None
    faults = list(precheck(job, environment, arguments, site=site))
    if not is_standalone(environment):
        library = os.path.abspath(environment.get("SLIPWAY_LIB") or LIBRARY)  # noqa: PTH100 -- keeps links
        remedy = "unset it, or set it to the folder of the script library"
        faults += need("no-library", "SLIPWAY_LIB", f"{library}/job.bash", remedy, file=True)
        trusted = environment.get("SLIPWAY_TRUSTED_FOLDER", "")
        faults += check_library_owners(Path(library), named=bool(environment.get("SLIPWAY_LIB")), trusted=trusted)
    for fault in faults:
        if not dry_run or isinstance(fault, UsageError):
            raise fault
    submission = Submission(job, arguments, environment, library)
    if dry_run:
        return submission._replace(faults=(*faults, *_check_copy(*_config_paths(submission))))
    _copy_config(*_config_paths(submission))
    return submission


def run_submit_command(
    submission: Submission, script: str, *, test_only: bool = False, capture: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run the scheduler's submit command on a temporary file, which the scheduler copies immediately.

    Print its standard output, or return it with ``capture``.

    Args:
        submission: the checked job.
        script: the script to submit.
        test_only: whether only to request the expected start time.
        capture: whether to return standard output instead of printing it.

    Raises:
        JobgenError: if the scheduler's command is not on PATH.
    """
    import tempfile  # noqa: PLC0415 -- a dry run writes no file

    scheduler = scheduler_of(submission.job.scheduler)
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
        path = Path(folder, submission.job.spec.name + scheduler.suffix)  # the log's name may contain it
        write_script(path, script)
        command = scheduler.submission(str(path), submission.arguments)
        for fault in check_command(command):
            raise fault
        if test_only:
            command.insert(1, scheduler.test_option)
        output = subprocess.PIPE if capture else None
        environment = scheduler.without_overrides(submission.environment, submission.job)
        if ignored := sorted(submission.environment.keys() - environment.keys()):
            warn("ignored-variable", f"{', '.join(ignored)}: ignored, because the job script sets this option")
        return subprocess.run(command, env=environment, stdout=output, text=True, errors="replace", check=False)


def submit_for_job_number(submission: Submission, script: str) -> str:
    """Submit the job and return its number; "" if the scheduler rejected it and printed the reason.

    Raises:
        JobgenError: if the scheduler's command is not on PATH, or prints no job number.
    """
    done = run_submit_command(submission, script, capture=True)
    if done.returncode:
        return ""
    words = [word.partition(";")[0] for word in done.stdout.split()]  # sbatch --parsable prints JOB;CLUSTER
    number = next((word for word in reversed(words) if job_id(word)), "")
    if not number:
        raise JobgenError(
            "no-job-number",
            f"the scheduler accepted the job but printed no number: {done.stdout[:200]!r}. Find the job and cancel it.",
        )
    return number


def environment_without_job(*, inside: bool = False) -> Dict[str, str]:
    """Return the environment without the variables of the job in which this command runs, if any.

    Removed are the variables that the job's script exported (see lib/job.bash) and, unless ``inside``, those that the
    scheduler set. ``inside`` means that the command is to use this job's nodes.
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
    """Print one line for each setting of the job: value and source."""
    for setting in settings_of(submission.job, submission.environment):
        value = "(from variables on the nodes)" if setting.value is None else shlex.quote(setting.value)
        note(f"{setting.name}={value} ({setting.source})")


def _config_paths(submission: Submission) -> Tuple[Path, Path]:
    """Return the configuration file and the path that the job reads; they differ if jobgen must copy its own file."""
    job, environment = submission.job, submission.environment
    path = Path(environment.get("SLIPWAY_CONFIG") or job.spec.config)
    reads = job.spec.task in TRAINS and not environment.get("SLIPWAY_SCRIPT")
    return (find_config(path) if reads else path), path


def _check_copy(found: Path, path: Path) -> Iterator[JobgenError]:
    """Yield an error if permissions do not allow copying ``found`` to ``path``."""
    folder = path.parent if os.path.lexists(path.parent) else path.parent.parent
    if found != path and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        yield JobgenError("cannot-write", f"SLIPWAY_CONFIG: cannot write {path}: {folder} is not a writable folder.")


def _copy_config(found: Path, path: Path) -> None:
    """Copy jobgen's packaged configuration to ``path`` if the two differ."""
    if found == path:
        return
    try:
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(found, path)
    except OSError as error:
        raise JobgenError("cannot-write", f"SLIPWAY_CONFIG: cannot write {path}: {error.strerror}.") from error
    note(f"copied {found} to {path}: edit it as needed")
