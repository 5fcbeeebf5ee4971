"""Schedulers: directives of job scripts, submission commands, and queries for submitted jobs.

Each module of this package defines a scheduler or a client as ``SCHEDULER``. Other code uses only the class
``Scheduler``.
"""

from __future__ import annotations

import shutil
from typing import ClassVar, Dict, List, Literal, Mapping, NamedTuple, Optional, Set, Tuple

from jobgen.base import registry
from jobgen.base.job import Job, Option, Site
from jobgen.base.queue import Queue
from jobgen.base.shell import Word, words_of

CLIENTS = ("dask",)
"""Modules of this package that are clients: programs that request nodes from the site's scheduler (``client``)."""
TORCHRUN = "@{torchrun}"
"""Placeholder in a sentence for the time that torchrun adds, if the script starts ranks with it."""
Directive = Tuple[str, str]
"""A directive and its reason, the comment in the script."""


class HeaderText(NamedTuple):
    """Sentences of a script's header that differ between schedulers (templates/header.txt)."""

    stop: str
    """The command that stops a job, and its effect."""
    log: str
    """Location of the scheduler's log."""
    scratch: str
    """Job number in the names of scratch folders, for the site's epilog."""
    remains: str
    """What removes folders that remain on local disks, and their name pattern."""
    clean_up: Tuple[Tuple[str, str, str, str], ...]
    """Table: event; its effect on RUN_DIR, on the folder on the first node's disk, and on those on other nodes."""
    restarts: Tuple[Tuple[str, str, str], ...]
    """Table: event after which the job starts again; what restarts it (scheduler or script); limit."""
    needs: str
    """Required version of the scheduler."""
    processes: str = ""
    """Processes of the library on the nodes that depend on the scheduler, each with a semicolon after it; or ""."""
    settings: str = ""
    """How settings reach the script; "": through the environment."""

    def sentences(self) -> Dict[str, str]:
        """Return the fields that are sentences."""
        return {name: text for name, text in self._asdict().items() if isinstance(text, str)}


class Array(NamedTuple):
    """A script's request for an array of jobs."""

    directives: List[Directive]
    """All directives of the script."""
    task: str
    """Bash expansion of the task's index, from 0."""


class Scheduler:
    """The scheduler-specific part of job scripts and commands.

    The Bash part is ``jobscripts/lib/<name>.bash``: find_allocation, watch_time_limit, handle_stop_signal, resubmit,
    job_has_ended, continue_command and SCHEDULER_COMMANDS.
    """

    name: str
    suffix: str
    """Suffix of script names."""
    submit: str
    """Command that submits or starts a script."""
    allocate = ""
    """Command that requests nodes and opens a shell in the allocation; "": none."""
    launcher: str
    """Default launcher, if neither spec nor site sets one."""
    identity: str
    """Bash that sets ``job_id`` and ``submit_folder``, and ``restarted`` (empty in a new job) if the scheduler reports
    restarts."""
    header_text: HeaderText
    """Sentences of the header; only schedulers with a queue have them."""
    restarted = ""
    """Bash that sets ``restarted`` from the files in ``run_dir``, if the scheduler did not report it."""

    header = "header.txt"
    """Template of the script's header."""
    comments: Literal["beside", "above"] = "beside"
    """Position of a directive's reason: some schedulers parse a directive to the end of its line."""
    resumes: ClassVar[Dict[str, str]] = {}
    """Values of a site's ``resume`` that it supports besides ``none``, with commands; the first is the default."""
    early_seconds = 0
    """Seconds by which the warning of the time limit may arrive earlier than the script requests."""
    script_path = 'script=$(realpath -- "$0")'
    """Bash that sets ``script``, the path of the submitted file."""
    one_machine = False
    """Whether it is only this machine, without a queue."""
    has_queue = True
    """Whether scripts are submitted to a queue, not started directly."""
    takes_arguments = True
    """Whether scripts can have arguments; if not, SLIPWAY_ARGS holds them and the library has read_arguments."""
    node_properties = False
    """Whether it supports a site's ``node_properties``."""
    mpirun_options: Tuple[Word, ...] = ()
    """Options with which an Open MPI built without support for this scheduler finds the nodes."""
    flags: ClassVar[Dict[str, str]] = {}
    """Option of the scheduler for each of the flags partition, account, qos and array that it supports."""
    test_option = ""
    """Option of ``submit`` that only prints the expected start time; "": none."""
    time_option = ""
    """Option that sets a job's time limit."""
    dask_cluster = ""
    """Dask-Jobqueue class that requests nodes; "": none."""
    dask_options: ClassVar[Dict[str, Option]] = {}
    """Options of a Dask worker's job that replace those of a script; {name} and {logs} are filled in at run time."""
    dask_find: Tuple[str, ...] = ()
    """Command that prints the numbers of the jobs named {name}."""
    dask_cancel: Tuple[str, ...] = ()
    """Command that cancels jobs; their numbers follow it."""
    job_variables = ""
    """Prefix of the variables that it sets in a job."""
    job_number = ""
    """Variable with the job's number."""
    client_variables: Tuple[str, ...] = ()
    """Variables with that prefix that its commands also read outside jobs, such as the path of its configuration."""
    other_job_variables: Tuple[str, ...] = ()
    """Variables without that prefix that it sets in a job, or that a script derives from it."""

    queue: Optional[Queue] = None
    """Queries and cancels submitted jobs for ``jobgen list``, ``status``, ``logs``, ``cancel``; None: not supported."""

    def directives(self, job: Job) -> List[Directive]:  # noqa: ARG002 -- for others
        """Return the directives at the top of the script, in order; [] if it is not submitted to a queue."""
        return []

    def array(self, job: Job, *, tasks: int, at_once: int) -> Optional[Array]:  # noqa: ARG002 -- for others
        """Return the request for an array of ``tasks`` jobs, 2 or more; None if the scheduler has no arrays.

        At most ``at_once`` of them run at the same time; 0: unlimited.
        """
        return None

    def computed_options(self, job: Job) -> Set[str]:  # noqa: ARG002 -- for others
        """Return the options that follow from nodes, ranks, memory and time of a job, with their other forms."""
        return set()

    def without_overrides(self, environment: Mapping[str, str], job: Job) -> Dict[str, str]:  # noqa: ARG002
        """Return ``environment`` without variables of the submit command that would replace options of the script."""
        return dict(environment)

    def flag_options(self, site: Site) -> Dict[str, str]:  # noqa: ARG002 -- for others
        """Return ``flags`` at ``site``."""
        return self.flags

    def site_lines(self, job: Job) -> List[Tuple[str, str]]:  # noqa: ARG002 -- for others
        """Return assignments for the scheduler's part of the script library, each with its comment."""
        return []

    def site_text(self, job: Job) -> str:  # noqa: ARG002 -- for others
        """Return further lines for the same part, inserted verbatim."""
        return ""

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Return the command that submits the script at ``path``; ``arguments`` go to the training program."""
        raise NotImplementedError

    def interactive(self, job: Job, path: str) -> List[str]:
        """Return the command that runs the script at ``path`` on a node, interactively at this terminal.

        Raises:
            JobgenError: if that is not possible.
        """
        raise NotImplementedError

    def without_job(self, environment: Mapping[str, str]) -> Dict[str, str]:
        """Return ``environment`` without the variables that this scheduler set for the current job, if any."""
        if not environment.get(self.job_number):
            return dict(environment)
        return {
            name: value
            for name, value in environment.items()
            if name in self.client_variables
            or not (name.startswith(self.job_variables) or name in self.other_job_variables)
        }

    def settings_of(self, arguments: List[str]) -> Dict[str, str]:  # noqa: ARG002 -- for others
        """Return settings that pass ``arguments`` to the script if the submit command cannot."""
        return {}


def array_range(tasks: int, at_once: int) -> str:
    """Return the index range of an array in the schedulers' syntax, such as 0-11%2."""
    return f"0-{tasks - 1}" + (f"%{at_once}" if at_once else "")


def time_limit(minutes: int) -> str:
    """Return a job's time limit in the schedulers' syntax, such as 01:30:00."""
    return f"{minutes // 60:02}:{minutes % 60:02}:00"


def directive_words(site: Site) -> List[str]:
    """Return the site's ``directives`` as words of a command.

    Raises:
        JobgenError: if a quote is not closed.
    """
    return [word for text in site.directives for word in words_of(text, what=f"site {site.name}: directives:")]


def array_directive_reason(at_once: int) -> str:
    """Return the reason of the array directive."""
    return f"one task per trial; at most {at_once} at the same time" if at_once else "one task per trial"


def scheduler_names() -> List[str]:
    """Return the valid values of a site's ``scheduler``."""
    return [name for name in registry.names(__name__) if name not in CLIENTS]


def scheduler_of(name: str) -> Scheduler:
    """Return the scheduler ``name``, one of ``scheduler_names`` or CLIENTS."""
    scheduler: Scheduler = registry.load(__name__, name, "SCHEDULER")
    return scheduler


def queue_of(name: str) -> Optional[Queue]:
    """Return the queue of the scheduler ``name``; None if it is unknown or has no queue."""
    return scheduler_of(name).queue if name in scheduler_names() else None


def queues_here() -> List[Queue]:
    """Return the queues whose commands are on this machine; some clusters have several."""
    every = [queue_of(name) for name in scheduler_names()]
    return [queue for queue in every if queue and shutil.which(queue.command)]
