"""``jobgen run``: say what will run where, submit it, and follow its log; without a scheduler, run it here."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys

from jobgen.base.errors import JobgenError, UsageError, note, say
from jobgen.jobs.submit import show
from jobgen.render.files import site_or_default
from jobgen.run.job import Job
from jobgen.run.options import JOB, variables
from jobgen.run.program import program_of
from jobgen.schedulers import scheduler_of
from slipway.base.slugs import EXIT_FAILED


def run(arguments: argparse.Namespace) -> int:
    """Submit the job of a command line, or run it on this machine if the site has no scheduler; return an exit code.

    The first line of standard output is the job's number; with ``--follow``, the job's log is next. A user without a
    default site is asked for it first.

    Returns:
        0 if the job was submitted; with ``--follow``, and without a scheduler, that of the run. For a dry run, the exit
        code of the first error that the real command would report now, or 0.

    Raises:
        JobgenError: if a check fails.
    """
    if arguments.follow and arguments.array:
        raise UsageError("flag-conflict", "--follow prints one log, but an --array has one for each task.")
    program = program_of(arguments.program, module=arguments.module)
    wanted = {name: value for name, value in vars(arguments).items() if name in JOB}
    if program.kind != "run":
        wanted["site"] = arguments.site or _default_site(yes=arguments.yes)
    job = Job(arguments.program, *arguments.arguments, env=variables(arguments.env), **wanted)
    plan = job.plan(dry_run=arguments.dry_run)
    submission, scheduler = plan.submission, scheduler_of(plan.submission.job.scheduler)
    if arguments.dry_run:  # first what is long
        code = show(submission, scheduler.submission("SCRIPT", submission.arguments))
    plan.warn()
    for line in plan.lines():
        note(line)
    if arguments.dry_run:
        return code
    if not scheduler.has_queue:
        from jobgen.run.here import run_here  # noqa: PLC0415 -- for sites without a scheduler

        return run_here(submission, umask=arguments.umask)
    number = plan.job_number()
    say(number)
    if arguments.follow:
        return _follow(number)
    note(f"submitted job {number}: `jobgen logs --follow {number}` shows its log, `jobgen cancel {number}` stops it")
    return 0


def _default_site(*, yes: bool) -> str:
    """Return the default site; if there is none, draft it, ask the user, and save it."""
    try:
        return site_or_default(None)
    except JobgenError as error:
        if error.slug != "no-site":
            raise
    from jobgen.detect import save_default_draft  # noqa: PLC0415 -- for the first run only

    with contextlib.redirect_stdout(sys.stderr):  # standard output is for the job's number
        save_default_draft(name=None, yes=yes)
    return site_or_default(None)


def _follow(number: str) -> int:
    """Print the job's log until it ends, and return 0 if its run is done; Ctrl-C leaves the job alone."""
    from jobgen.follow.commands import logs, target_of  # noqa: PLC0415 -- most jobs are not followed

    try:
        logs(number, follow=True)
    except KeyboardInterrupt:
        sys.stdout.flush()
        note(f"job {number} continues: `jobgen logs --follow {number}` shows it, `jobgen cancel {number}` ends it")
        return 130
    target, _ = target_of(number)
    for each in target.runs:
        note(f"{each.path}: {each.describe()}")
    is_done = bool(target.runs) and all(each.is_done for each in target.runs)
    if target.runs:
        folder = shlex.quote(str(target.runs[0].path))
        again = "" if is_done else f"`jobgen run {folder}` continues it; "
        note(f"{again}`trainer report {folder}` draws its curves")
    return 0 if is_done else EXIT_FAILED
