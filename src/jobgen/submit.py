"""``jobgen submit``: see what the login node can see, then hand the script to the scheduler."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple

from jobgen.data import data_folder
from jobgen.errors import JobgenError, UsageError, nearest, printable
from jobgen.launch import backends
from jobgen.model import BUILDS, Job
from jobgen.queues import job_id
from jobgen.schedulers import scheduler_of
from jobgen.scripts import Script, job_of, script_of
from slipway.gpu import advice, describe, fits, gpus_of_this_machine
from slipway.layout import IGNORED_NAMES, JOB_SCRIPT, OTHER_VARIABLES, SETTINGS, refusal

LIBRARY = Path("jobscripts", "lib")
"""Where a clone has the library."""
BUILDERS = {"image": "build/image", "venv": "build/setup"}
"""What a job that builds runs, in a clone."""


class Submission(NamedTuple):
    """A job that could start, as far as can be seen from here."""

    script: Script
    arguments: List[str]
    """For what it trains."""
    environment: Dict[str, str]
    library: Dict[str, str]
    """SLIPWAY_LIB, unless the script has the library inside."""

    @property
    def added(self) -> Dict[str, str]:
        """Return what is set besides, by jobgen itself."""
        scheduler = scheduler_of(self.script.job.scheduler)
        return {**scheduler.environment(self.arguments), **self.library}


def submit(
    spec: str, site: str, settings: List[str], arguments: List[str], *, dry_run: bool = False, test_only: bool = False
) -> int:
    """Submit the job of ``spec`` at ``site`` with ``arguments`` for what it trains; return the scheduler's exit code.

    The job's number is the last line of standard output; all prose goes to standard error.

    Raises:
        JobgenError: if the job could not start as things are.
    """
    submission = prepare(spec, site, settings, arguments, own_environment(), dry_run=dry_run, test_only=test_only)
    if dry_run:
        sys.stdout.write(submission.script.text)
        scheduler = scheduler_of(submission.script.job.scheduler)
        assignments = [f"{name}={shlex.quote(value)}" for name, value in submission.added.items()]
        command = shlex.join(scheduler.submission("SCRIPT", arguments))
        _note(f"would submit this with: {' '.join([*assignments, command])}")
        return 0
    return hand_over(submission, test_only=test_only).returncode


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
    """Render the job and look at all that it needs.

    Raises:
        JobgenError: if the job could not start as things are.
    """
    standalone = not (environment.get("SLIPWAY_LIB") or LIBRARY.is_dir())
    job = job_of(spec, site, settings, standalone=standalone)
    scheduler = scheduler_of(job.scheduler)
    if not scheduler.has_queue:
        why = f"site {job.site.name} has no scheduler" if scheduler.one_machine else f"{job.spec.name} is no job"
        raise JobgenError(f"{why}: run the script that `jobgen render` writes.")
    if test_only and not scheduler.test_option:
        raise JobgenError(f"--test-only: {scheduler.submit} has no such question: look with --dry-run.")
    _check_settings(environment)
    if job.spec.task in BUILDS:
        _check_build(job, arguments, environment)
    else:
        _check_arguments(job, arguments, environment)
        _check_training(job, environment, site=site, dry_run=dry_run)
    library = {}
    if not standalone:
        folder = os.path.abspath(environment.get("SLIPWAY_LIB") or LIBRARY)  # noqa: PTH100 -- keeps links
        _need("SLIPWAY_LIB", f"{folder}/job.bash", "unset it, or name the folder of the library", file=True)
        library["SLIPWAY_LIB"] = folder
    return Submission(script_of(job, standalone=standalone), arguments, environment, library)


def hand_over(
    submission: Submission, *, test_only: bool = False, capture: bool = False
) -> subprocess.CompletedProcess[str]:
    """Submit a temporary file, which the scheduler copies at once; its standard output is shown, or captured.

    Raises:
        JobgenError: if there is no scheduler's command here.
    """
    script, arguments = submission.script, submission.arguments
    scheduler = scheduler_of(script.job.scheduler)
    with tempfile.TemporaryDirectory(prefix="jobgen-") as folder:
        path = Path(folder, script.job.spec.name + scheduler.suffix)  # the job's log may be named by it
        script.write(path)
        command = scheduler.submission(str(path), arguments)
        if not shutil.which(command[0]):
            raise JobgenError(f"no {command[0]} on this machine: submit on a login node, or look with --dry-run.")
        if test_only:
            command.insert(1, scheduler.test_option)
        output = subprocess.PIPE if capture else None
        environment = {**submission.environment, **submission.added}
        return subprocess.run(command, env=environment, stdout=output, text=True, check=False)


def hand_over_for_number(submission: Submission) -> str:
    """Submit it and return the number of the job; "" if the scheduler does not take it, and has said why.

    Raises:
        JobgenError: if there is no scheduler's command here, or if it names no number.
    """
    done = hand_over(submission, capture=True)
    if done.returncode:
        return ""
    words = [word.partition(";")[0] for word in done.stdout.split()]  # of sbatch --parsable: JOB;CLUSTER
    number = next((word for word in reversed(words) if job_id(word)), "")
    if not number:
        raise JobgenError(
            f"the scheduler took a job and named no number: {done.stdout[:200]!r}. Look for it there, and cancel it."
        )
    return number


def own_environment() -> Dict[str, str]:
    """Return the environment without what a job has exported, where this is run inside one (see lib/job.bash)."""
    environment = os.environ
    exported = environment.get("SLIPWAY_EXPORTED", "").splitlines()
    pairs = dict(line.partition("=")[::2] for line in exported)
    return {
        name: value for name, value in environment.items() if name != "SLIPWAY_EXPORTED" and pairs.get(name) != value
    }


def _check_settings(environment: Mapping[str, str]) -> None:
    """Look at every setting that is set, and at those of earlier versions."""
    ignored = []
    for setting in SETTINGS.values():
        if environment.get(setting.old):
            if setting.refuse_old:
                raise JobgenError(f"{setting.old} is called {setting.name} now: set that instead.")
            ignored.append(f"{setting.old} (use {setting.name})")
        if (value := environment.get(setting.name)) and (why := refusal(setting.name, value)):
            raise JobgenError(f"{why}.")
    ignored += [f"{old} (use {new})" for old, new in IGNORED_NAMES.items() if environment.get(old)]
    if ignored:
        _note(f"set, but not read: {', '.join(ignored)}")
    for name in environment:
        if name.startswith("SLIPWAY_") and name not in SETTINGS and name not in OTHER_VARIABLES:
            _note(f"{name} is no setting.{nearest(name, list(SETTINGS))}")


def _check_build(job: Job, arguments: List[str], environment: Mapping[str, str]) -> None:
    """Look at what a job that builds needs: a clone, which it makes the image or the environment from."""
    program = BUILDERS[job.spec.task]
    if not os.access(program, os.X_OK):
        raise JobgenError(f"{job.spec.name} needs a clone of the project: there is no {program} in {Path.cwd()}.")
    if arguments:
        raise UsageError(f"{job.spec.name} takes no arguments, and these stand behind --: {shlex.join(arguments)}.")
    variant = environment.get("SLIPWAY_VARIANT") or "cuda"
    known = [path.stem for path in Path("containers", "pins").glob("*.env")]
    if variant not in known:
        raise JobgenError(f"SLIPWAY_VARIANT: no {variant}.env in containers/pins.{nearest(variant, known)}")
    _compare_gpus(lambda: variant)
    if wheelhouse := environment.get("SLIPWAY_WHEELHOUSE"):
        _need("SLIPWAY_WHEELHOUSE", wheelhouse, "`make wheelhouse` fills one")


def _check_arguments(job: Job, arguments: List[str], environment: Mapping[str, str]) -> None:
    """Look for flags that the trainer does not have, which would end the job on the nodes."""
    if given := environment.get("SLIPWAY_ARGS"):
        if arguments:
            raise UsageError("arguments stand both in SLIPWAY_ARGS and behind --: unset SLIPWAY_ARGS.")
        try:
            arguments = shlex.split(given)
        except ValueError as error:
            raise JobgenError(f"SLIPWAY_ARGS is {given!r}: {error}.") from error
    if not arguments or _foreign(job, environment):
        return
    from jobgen.flags import ArgumentError, load_schema, read_arguments  # noqa: PLC0415 -- mostly there are none

    try:
        files = read_arguments(arguments, load_schema()).files
    except ArgumentError as error:
        raise UsageError(str(error) if str(error).endswith("?") else f"{error}.") from error
    if files:
        raise UsageError(
            f"unexpected argument {files[0]!r}: a job trains by SLIPWAY_CONFIG alone, which its run keeps."
        )


def _check_training(job: Job, environment: Mapping[str, str], *, site: str, dry_run: bool) -> None:
    """Look at what the script will look at on the head node, for a mistake should not wait in a queue."""
    run_dir = environment.get("SLIPWAY_RUN_DIR")
    if run_dir and Path(run_dir, JOB_SCRIPT).is_file():
        return  # that script goes on with the settings that it has kept
    known = backends(job)
    if (backend := environment.get("BACKEND")) and backend not in known:
        instead = "horovod-gloo" if backend == "horovod" else backend
        raise JobgenError(
            f"BACKEND={backend}: {job.spec.name} launches {' or '.join(known)}; submit {instead} instead."
        )
    in_clone = os.access(BUILDERS["image"], os.X_OK)
    default = "0" if job.site.container == "none" else "1"
    if (environment.get("USE_CONTAINER") or default) == "1":
        made = f"`jobgen submit image_build --site {shlex.quote(site)}`{'' if in_clone else ' in a clone'} makes it"
        image = environment.get("SLIPWAY_IMAGE") or "slipway.sif"
        _need("SLIPWAY_IMAGE", image, f"{made}, or set USE_CONTAINER=0", dry_run=dry_run)
        _compare_gpus(lambda: _variant_of(image))
    elif job.site.venv == "local":
        if not os.access(BUILDERS["venv"], os.X_OK):
            raise JobgenError(
                f"site {job.site.name} makes a virtual environment on each node, which needs a clone of the project: "
                f"there is no {BUILDERS['venv']} in {Path.cwd()}."
            )
    else:
        venv = environment.get("SLIPWAY_VENV") or ".venv"
        made = f"`jobgen submit venv_build --site {shlex.quote(site)}`{'' if in_clone else ' in a clone'} makes it"
        _need("SLIPWAY_VENV", f"{venv}/bin/python", f"{made}, or set USE_CONTAINER=1", dry_run=dry_run)
    if _foreign(job, environment):
        _need("SLIPWAY_SCRIPT", environment["SLIPWAY_SCRIPT"], "correct it", file=True)
    else:
        _need_config(Path(environment.get("SLIPWAY_CONFIG") or job.spec.config), dry_run=dry_run)
    if data := environment.get("SLIPWAY_DATA"):
        _need("SLIPWAY_DATA", data, "correct it")


def _variant_of(image: str) -> str:
    """Return the variant that an image of ours is labelled with; "" without an answer."""
    try:
        words = ["apptainer", "inspect", "--labels", image]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"(?m)^slipway\.variant: (.+)$", done.stdout)
    return found[1] if found else ""


def _compare_gpus(find_variant: Callable[[], str]) -> None:
    """Say where a variant does not run on the GPUs of this machine; the nodes' may be others, so it is no error."""
    if (gpus := gpus_of_this_machine()) and not fits(variant := find_variant(), gpus):
        _note(
            f"the {variant} variant does not run on this machine, which has {describe(gpus)}; for nodes like it: "
            f"{advice(gpus)}"
        )


def _foreign(job: Job, environment: Mapping[str, str]) -> bool:
    """Return whether the job runs a script in place of the trainer."""
    return bool(environment.get("SLIPWAY_SCRIPT")) and job.spec.task == "train"


def find_config(path: Path) -> Path:
    """Return ``path``, or the file that jobgen brings along and copies there where it is missing."""
    packaged = data_folder("configs") / path.name
    return path if path.exists() or path.parent != Path("configs") or not packaged.is_file() else packaged


def _need_config(path: Path, *, dry_run: bool) -> None:
    """Look for the configuration; one that jobgen brings along is copied where it is missing."""
    packaged = find_config(path)
    if packaged == path:
        _need("SLIPWAY_CONFIG", str(path), "see configs/", file=True)
        return
    if dry_run:
        _note(f"would copy {packaged} to {path}")
        return
    try:
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(packaged, path)
    except OSError as error:
        raise JobgenError(f"SLIPWAY_CONFIG: cannot write {path}: {error.strerror}.") from error
    _note(f"copied {packaged} to {path}: change it as you like")


def _need(name: str, path: str, remedy: str, *, file: bool = False, dry_run: bool = False) -> None:
    if not os.access(path, os.R_OK):
        why = f"{name}: {path} is missing or cannot be read from here: {remedy}."
        if not dry_run:
            raise JobgenError(why)
        _note(why)
    if file and not Path(path).is_file():
        raise JobgenError(f"{name}: {path} is no file: {remedy}.")


def _note(text: str) -> None:
    print(printable(f"jobgen: {text}"), file=sys.stderr)
