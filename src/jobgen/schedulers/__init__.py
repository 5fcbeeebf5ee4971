"""Schedulers: how one is asked for what a job needs, and how jobs are submitted to it.

Each module of this package is one, or a client of one, with its ``SCHEDULER``; everything else sees only the class
below.
"""

from __future__ import annotations

import shutil
from typing import ClassVar, Dict, List, Literal, Mapping, NamedTuple, Optional, Tuple

from jobgen.base import registry
from jobgen.base.job import Job, Option
from jobgen.base.queue import Queue
from jobgen.base.shell import Word

CLIENTS = ("dask",)
"""Modules of this package that are no site's scheduler: programs that ask it for nodes, each a spec's ``client``."""
TORCHRUN = "@{torchrun}"
"""In a sentence: the time that torchrun adds, where a script starts ranks by it."""
Directive = Tuple[str, str]
"""A directive, and why it is there."""


class Contract(NamedTuple):
    """What differs from scheduler to scheduler in the header of a script, in sentences (templates/header.txt)."""

    stop: str
    """The command that stops a job, and what happens then."""
    log: str
    """Where the scheduler's own log goes."""
    scratch: str
    """What folders on local disks are named by: a job's number, as the site's epilog knows it."""
    remains: str
    """Who removes folders that stay on local disks, and by which pattern."""
    clean_up: Tuple[Tuple[str, str, str, str], ...]
    """Table: event; what happens to RUN_DIR, to the folder on the first node's disk, to those on other nodes."""
    restarts: Tuple[Tuple[str, str, str], ...]
    """Table: event after which the scheduler, or the script because of it, starts the job again; which; its bound."""
    needs: str
    """Which versions of the scheduler."""
    settings: str = ""
    """How settings reach the script, if not simply from the environment."""

    def sentences(self) -> Dict[str, str]:
        """Return the fields that are sentences."""
        return {name: text for name, text in self._asdict().items() if isinstance(text, str)}


class Array(NamedTuple):
    """How a script asks for an array of jobs."""

    directives: List[Directive]
    """All of the script."""
    task: str
    """Bash that expands to the number of a task, from 0 on."""


class Scheduler:
    """What a job script says of its scheduler.

    The rest is Bash, ``jobscripts/lib/<name>.bash``: find_allocation, watch_time_limit, handle_stop_signal, resubmit,
    job_has_ended, continue_command and SCHEDULER_COMMANDS.
    """

    name: str
    suffix: str
    """Of the scripts' names."""
    submit: str
    """The command that submits a script, or starts it."""
    launcher: str
    """What starts processes on the nodes, where neither the spec nor the site says it."""
    identity: str
    """Bash that sets ``job_id`` and ``submit_folder``; and ``restarted``, empty in a new job, where the scheduler
    tells."""
    contract: Contract
    """Of one with a queue."""
    restarted = ""
    """Bash that sets ``restarted`` by what is in ``run_dir``, where the scheduler has not told."""

    header = "header.txt"
    """The template of the contract in the script's header."""
    comments: Literal["behind", "above"] = "behind"
    """Where a reason can stand: some schedulers read a directive to the end of its line."""
    resumes: ClassVar[Dict[str, str]] = {}
    """Which ``resume`` of a site it can do besides ``none``, and by which command."""
    early_seconds = 0
    """By which its warning of the time limit may come before the time that a script asks for."""
    script_path = 'script=$(realpath -- "$0")'
    """Bash that sets ``script``, the file that was submitted."""
    one_machine = False
    """Whether there is no queue, and no node but this one."""
    has_queue = True
    """Whether scripts are submitted, and not simply started."""
    takes_arguments = True
    """Whether a script is given arguments; otherwise they come in SLIPWAY_ARGS, and the library has read_arguments."""
    node_properties = False
    """Whether it can be asked for nodes by a site's ``node_properties``."""
    mpirun_options: Tuple[Word, ...] = ()
    """Options by which an Open MPI that does not know this scheduler finds the nodes."""
    test_option = ""
    """Option of ``submit`` that only asks when the job could start."""
    time_option = ""
    """The option that limits a job's time."""
    dask_cluster = ""
    """The class of Dask-Jobqueue that asks it for nodes; "": none."""
    dask_options: ClassVar[Dict[str, Option]] = {}
    """What the job of a Dask worker has in place of a script's options; {name} and {logs} are filled in at run time."""
    dask_find: Tuple[str, ...] = ()
    """The command that prints the numbers of the jobs called {name}."""
    dask_cancel: Tuple[str, ...] = ()
    """The command that ends jobs, before their numbers."""
    job_variables = ""
    """What the names of the variables that it sets in a job begin with."""
    job_number = ""
    """That of those which holds the job's number."""
    client_variables: Tuple[str, ...] = ()
    """Those with such names that its commands read anywhere, such as where its configuration is."""
    other_job_variables: Tuple[str, ...] = ()
    """What it sets in a job under other names, and what a script reads of it."""

    queue: Optional[Queue] = None
    """What answers for submitted jobs, to ``jobgen status``, ``logs`` and ``cancel``; None: they cannot ask."""

    def directives(self, job: Job) -> List[Directive]:
        """Return what stands at the top of the script, in order."""
        raise NotImplementedError

    def array(self, job: Job, *, tasks: int, at_once: int) -> Optional[Array]:  # noqa: ARG002 -- for others
        """Return an array of ``tasks`` jobs, 2 or more; None where the scheduler has no arrays.

        At most ``at_once`` of them run together; 0: any number.
        """
        return None

    def site_lines(self, job: Job) -> List[Tuple[str, str]]:  # noqa: ARG002 -- for others
        """Return assignments that the scheduler's part of the library reads, each with its comment."""
        return []

    def site_text(self, job: Job) -> str:  # noqa: ARG002 -- for others
        """Return more lines of that kind, which stand as they are."""
        return ""

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Return the command that submits the script at ``path`` with ``arguments`` for what it trains."""
        raise NotImplementedError

    def interactive(self, job: Job, path: str) -> List[str]:
        """Return the command that runs the script at ``path`` at this terminal, on a node.

        Raises:
            JobgenError: where that is impossible.
        """
        raise NotImplementedError

    def without_job(self, environment: Mapping[str, str]) -> Dict[str, str]:
        """Return ``environment`` without what this scheduler says of the job in which it is found, if it is one."""
        if not environment.get(self.job_number):
            return dict(environment)
        return {
            name: value
            for name, value in environment.items()
            if name in self.client_variables
            or not (name.startswith(self.job_variables) or name in self.other_job_variables)
        }

    def settings_of(self, arguments: List[str]) -> Dict[str, str]:  # noqa: ARG002 -- for others
        """Return the settings by which those arguments reach the script, where the command cannot hold them."""
        return {}


def range_of(tasks: int, at_once: int) -> str:
    """Return the numbers of so many tasks as schedulers read them, as 0-11%2."""
    return f"0-{tasks - 1}" + (f"%{at_once}" if at_once else "")


def array_reason(at_once: int) -> str:
    """Return why the directive of an array is there."""
    return f"a task each; at most {at_once} at once" if at_once else "a task each"


def scheduler_names() -> List[str]:
    """Return the names that a site's ``scheduler`` may have."""
    return [name for name in registry.names(__name__) if name not in CLIENTS]


def scheduler_of(name: str) -> Scheduler:
    """Return the scheduler of that name, one of ``scheduler_names`` or CLIENTS."""
    scheduler: Scheduler = registry.load(__name__, name, "SCHEDULER")
    return scheduler


def queue_of(name: str) -> Optional[Queue]:
    """Return the queue of a scheduler by its name; None if there is no such scheduler, or it has no queue."""
    return scheduler_of(name).queue if name in scheduler_names() else None


def queues_here() -> List[Queue]:
    """Return those whose commands are on this machine: none, one, or, on some clusters, several."""
    every = [queue_of(name) for name in scheduler_names()]
    return [queue for queue in every if queue and shutil.which(queue.command)]
