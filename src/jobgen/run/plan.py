"""A checked job: the lines that ``jobgen run`` prints about it, and its submission."""

from __future__ import annotations

import shlex
from typing import List, NamedTuple

from jobgen.base.errors import JobgenError, warn
from jobgen.jobs.submit import Submission, submit_for_job_number
from jobgen.run.limits import clock
from jobgen.run.program import Program
from jobgen.run.source import Source
from jobgen.schedulers import Scheduler, scheduler_of
from slipway.base.contract import INPUT_CONFIG


class Plan(NamedTuple):
    """A job that has been checked and can be submitted."""

    program: Program
    submission: Submission
    runtime: str
    """The image or environment, in one line; "" for a run that continues with its own."""
    source: Source
    """Facts about the script."""

    @property
    def has_queue(self) -> bool:
        """Whether a scheduler runs the job, not this machine."""
        return scheduler_of(self.submission.job.scheduler).has_queue

    def job_number(self) -> str:
        """Submit the job and return its number.

        Raises:
            JobgenError: if the scheduler refuses it.
        """
        number = submit_for_job_number(self.submission, self.submission.script)
        if not number:
            raise JobgenError("submission-refused", "the scheduler refused the job; its reason is above.")
        return number

    def warn(self) -> None:
        """Warn if the ranks would train separate copies, or if a run has nothing from which it could continue."""
        job, program = self.submission.job, self.program
        ranks = job.spec.nodes * job.ranks_per_node
        if self.source.is_parallel is False and ranks > 1:
            warn(
                "no-process-group",
                f"{program.path} uses neither DistributedDataParallel nor another way to train on several GPUs: each "
                f"of the {ranks} ranks trains a copy.",
            )
        if program.run and program.run.foreign:
            warn(
                "starts-over",
                f"{program.path} has no checkpoint of slipway.Session: the program starts from its beginning, unless "
                "it loads one that it has saved.",
            )

    def lines(self) -> List[str]:
        """Return what will run where, one line each."""
        job, scheduler = self.submission.job, scheduler_of(self.submission.job.scheduler)
        environment = self.submission.environment
        output = environment.get("SLIPWAY_OUTPUT") or job.site.output
        folder = environment.get("SLIPWAY_RUN_DIR") or f"{output}/{job.spec.name}-<job>"
        found = [f"program  {self._command()}", f"folder   {folder}"]
        if self.runtime:
            found.insert(1, f"in       {self.runtime}")
        if not scheduler.has_queue:
            return [f"on       this machine (site {job.site.name})", *found]
        cores = f"{job.cpus_per_node} CPU cores"
        each = f"{job.gpus_per_node} GPU(s), {cores}" if job.gpus_per_node else cores
        given = [key for key in scheduler.flag_options(job.site).values() if job.options.get(key)]
        given += [key for key in scheduler.computed_options(job) if job.options.get(key)]  # of the site
        asked = [f"{f'-{key}' if len(key) == 1 else key} {job.options[key]}" for key in given] + [*job.site.directives]
        spares = f" + {job.spec.spares} spare" if job.spec.spares else ""
        where = ", ".join([f"site {job.site.name}", scheduler.name, *asked])
        limit = job.options.get(scheduler.time_option) or clock(job.spec.minutes)
        return [
            f"on       {job.spec.nodes}{spares} node(s) x {each}: {where}",
            *found,
            f"time     {limit}; {self._at_the_limit(scheduler)}",
        ]

    def _command(self) -> str:
        """Return the program with its arguments; of a run that continues, those that it keeps."""
        words, arguments = str(self.program), shlex.join(self.submission.arguments)
        if self.program.run:
            files = self.program.run.files
            words, arguments = files.kept_setting("SLIPWAY_SCRIPT") or INPUT_CONFIG, arguments or files.kept_arguments
        return f"{words} {arguments}".strip()

    def _at_the_limit(self, scheduler: Scheduler) -> str:
        """Return what happens when the job reaches its time limit, as a clause."""
        job, environment = self.submission.job, self.submission.environment
        most = environment.get("SLIPWAY_MAX_REQUEUES") or str(job.spec.max_requeues)
        starts = scheduler.resumes.get(job.resume) and most != "0"
        then = f"the job starts again, at most {most} times" if starts else "`jobgen run FOLDER` continues the run"
        ends = "the job ends, and nothing is saved: the script does not use slipway.Session"
        if not environment.get("SLIPWAY_SCRIPT"):
            return f"the trainer saves before that, and {then}"
        if self.source.has_session is None:
            return f"with slipway.Session the script saves before that, and {then}; otherwise it ends"
        return f"the script saves before that, and {then}" if self.source.has_session else f"then {ends}"
