"""OpenPBS, PBS Professional and Torque: qsub, qstat, qrerun.

PBS differs from Slurm in two ways. A script cannot have arguments, so SLIPWAY_ARGS holds them. There is no warning of
the time limit that works at all sites, so the script itself checks the clock.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from shlex import join
from typing import ClassVar, Dict, List, Literal, Optional, Set, Tuple

import msgspec

from jobgen.base.errors import JobgenError
from jobgen.base.job import BUILDS, Job, Option, Site
from jobgen.base.queue import NO_COMMAND, JobId, Phase, Seen, run_command, timestamp
from jobgen.base.shell import Expansion, Word, require_one_line, words_of
from jobgen.schedulers import (
    Array,
    Directive,
    HeaderText,
    Scheduler,
    array_directive_reason,
    array_range,
    directive_words,
    time_limit,
)

NAME = "name of the log; one log for output and errors; start again after the loss of a node"
NODES = "any number of nodes, their GPUs, cores for threads and data loaders; time limit of one start"
SHELL = "otherwise the login shell, perhaps tcsh, would read this script"
SITE = "set by the site file"
REASONS = {
    "S": SHELL,
    "N": NAME,
    "j": NAME,
    "r": NAME,
    "select": NODES,
    "place": NODES,
    "nodes": NODES,
    "mem": "memory of all nodes",
    "walltime": NODES,
}
"""Reason of each option; all other options come from the site."""
TOLERATE = {"openpbs": "-W tolerate_node_failures=all", "torque": "-f"}
"""Option with which a job survives the loss of a node other than the first (qsub(1B) of both)."""
BATCH_OPTIONS = {"S", "e", "j", "k", "o", "r"}
"""Options that an interactive job does not use."""


IDENTITY = """\
if [ -z "${PBS_JOBID:-}" ]; then
    echo "$script_name: error[no-nodes]: this is not a PBS job: submit it with qsub, or" \\
        "run it inside qsub -I" >&2 || :
    exit 78
fi
interactive=1 # inside qsub -I, each start of this script is a separate run
[ "${PBS_ENVIRONMENT:-}" = PBS_INTERACTIVE ] || interactive=''
cd -- "$PBS_O_WORKDIR" 2>/dev/null || { # PBS starts in the home folder
    echo "$script_name: error[cannot-read]: cannot enter ${PBS_O_WORKDIR@Q}, from where this job" \\
        "was submitted: is its disk mounted on $HOSTNAME?" >&2 || :
    exit 78
}
submit_folder=$PWD
job_id=${PBS_JOBID%%.*} # 12[1] of an array becomes 12_1: brackets are glob patterns
job_id=${job_id/[/_}
job_id=${job_id%]}
# Unset in a new job (job numbers can be reused): PBS counts the starts. Query twice, as a SIGTERM
# ends qstat too.
restarted=''
for nap in 0 1; do
    sleep "$nap" || :
    record=$(PATH=$PATH${PBS_O_PATH:+:$PBS_O_PATH} timeout 20 qstat -f "$PBS_JOBID" 2>/dev/null) &&
        [ -n "$record" ] || { record='' && continue; }
    [[ ! $record =~ [[:space:]](run|start)_count\\ =\\ ([2-9]|[0-9]{2}) ]] || restarted=1
    break
done"""
RESTARTED = """\
[ -n "$record" ] || # PBS does not answer: 1 if this job began an attempt here within 30 days
    restarted=$(find -- "$run_dir/logs/" -path "*/job" -mtime -30 -exec grep --quiet \\
        --line-regexp "pbs $job_id\\( ${PBS_JOBID#*.}\\)\\?" {} \\; -printf 1 -quit 2>/dev/null) || :"""
HEADER_TEXT = HeaderText(
    stop="qdel JOB: the ranks get SIGTERM and save; PBS kills them after the site's kill_delay@{torchrun}. The job "
    "ends and is not requeued.",
    log="PBS's log, with all output of the ranks and without a limit, goes to the folder of submission.",
    scratch="JOB",
    remains="A folder that stays (see Clean-up) is removed by the run's next attempt on that node, or by the site's "
    "epilogue: `rm -rf SLIPWAY_LOCAL_DISK/slipway-JOB.*` (of task 1 of array 12, JOB is 12_1; docs/howto/epilogue.md).",
    clean_up=(
        ("training ends, time limit, qdel", "stays", "removed", "removed"),
        ("SIGKILL before that (kill_delay)", "stays", "stays", "stays"),
        ("the first node dies", "stays", "stays", "stays"),
        ("another node dies", "stays", "removed", "stays on that node"),
    ),
    restarts=(
        ("PBS reports the loss of a node", "PBS (-r y)", "no limit"),
        ("qdel", "not requeued", ""),
    ),
    needs="OpenPBS (never run on PBS Professional and Torque)",
    processes=" on the first node, a timer for the time limit;",
    settings="`qsub -v NAME=VALUE,...` sets them, or `qsub -V` takes them from the environment; so do options of the "
    'trainer, as SLIPWAY_ARGS="--epochs 3".',
)
WAITING = "HQSTWU"
ENDED = "CFMX"
"""C in Torque; F, or X for an array task, in a PBS with job history. Any other letter means running (qstat(1B))."""
UNKNOWN = ("Unknown Job", "Job has finished")


class PbsQueue:
    """Queries and cancels jobs with qstat and qdel."""

    name = "pbs"
    command = "qstat"
    servers = True
    delivers_log = True

    def look(self, job: JobId) -> List[Seen]:
        """Query the job, then its history, then an array with this number, which PBS calls ``12[]``.

        Torque has no history; its ``-x`` means XML.
        """
        server = f".{job.server}" if job.server else ""
        one = f"{job.number}[{job.task}]{server}" if job.task else f"{job.number}{server}"
        tries = [["-f", one], ["-x", "-f", one]]
        if not job.task:
            array = f"{job.number}[]{server}"
            tries += [["-t", "-f", array], ["-x", "-t", "-f", array]]
        for arguments in tries:
            code, out, error = run_command(["qstat", *arguments])
            if code and "-x" not in arguments and not _is_unknown(error):
                raise JobgenError("scheduler-silent", f"PBS does not answer for job {one}: {error}.")
            if seen := _jobs_in(out):
                return seen
        return []

    def mine(self) -> List[Seen]:
        """Query the jobs that qselect lists, all at once: qstat -u prints neither folders nor complete job numbers."""
        code, out, error = run_command(["qselect", "-u", _user()])
        if code == NO_COMMAND:  # a qstat without qselect belongs to another scheduler, which imitates PBS
            return []
        jobs = out.split()
        if jobs and not code:
            code, out, error = run_command(["qstat", "-t", "-f", *jobs])  # -t: with the tasks of arrays
        if code and not _is_unknown(error):  # some may have ended since
            raise JobgenError("scheduler-silent", f"PBS does not list the jobs: {error}.")
        return [job for job in _jobs_in(out) if job.phase != "ended"]

    def cancel(self, job: JobId, seen: List[Seen]) -> List[str]:  # noqa: ARG002 -- of the protocol
        """Return qdel with the server's name of the job: PBS sends SIGTERM to the script, which forwards it."""
        return ["qdel", seen[0].job_id]

    def largest_array(self) -> Optional[int]:
        """Return the server's max_array_size (Torque: max_job_array_size), or None."""
        _, out, _ = run_command(["qstat", "-B", "-f"])
        found = re.search(r"(?m)^ +max_(?:job_)?array_size = ([0-9]+)$", out)
        return int(found[1]) if found else None


def _user() -> str:
    """Return the name of this process's user, or the number without a name. The variable USER may name another one."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _is_unknown(error: str) -> bool:
    return any(text.lower() in error.lower() for text in UNKNOWN)


def _jobs_in(listing: str) -> List[Seen]:
    return [_of_qstat(text) for text in re.split(r"(?m)^Job Id: ", listing)[1:]]


def _of_qstat(text: str) -> Seen:
    job_id, _, rest = text.replace("\n\t", "").partition("\n")  # a leading tab continues a line
    fields = dict(re.findall(r"(?m)^ +(\S+) = (.*)$", rest))
    state = fields.get("job_state", "?")
    phase: Phase = "waiting" if state in WAITING else "ended" if state in ENDED else "running"
    limit = fields.get("Resource_List.walltime")
    took = fields.get("resources_used.walltime", "?") + (f" of {limit}" if limit else "")
    code = fields.get("Exit_status", fields.get("exit_status", "?"))
    hosts = ", ".join(dict.fromkeys(part.split("/")[0] for part in fields.get("exec_host", "?").split("+")))
    about = {
        "waiting": fields.get("comment", "no reason given"),
        "running": f"on {hosts} for {took}",
        "ended": f"after {took} on {hosts}, exit code {code}",
    }[phase]
    job_id = job_id.strip()
    if "[]" in job_id:
        about = f"array of {fields.get('array_indices_submitted', '?')}; {fields.get('array_state_count', '').strip()}"
    index = re.search(r"\[(\d+)\]", job_id)
    log = fields.get("Output_Path", "").partition(":")[2]  # HOST:PATH
    log = log.replace("^array_index^", index[1] if index else "^array_index^")
    variables = re.search(r"PBS_O_WORKDIR=([^,]*)", fields.get("Variable_List", ""))
    folder = variables[1] if variables else ""
    failed = phase == "ended" and code != "0"
    submitted = timestamp(fields.get("ctime", ""), "%a %b %d %H:%M:%S %Y")
    given = fields.get("Submit_arguments") or fields.get("submit_args") or ""
    given = re.sub("<[^>]*>", " ", given)  # XML in some versions
    script = os.path.join(folder, given.split()[-1]) if given.split() else ""  # noqa: PTH118 -- text, not a path yet
    return Seen(job_id, state, phase, about, log, folder, failed, fields.get("Job_Name", ""), submitted, script)


class PBS(Scheduler):
    """OpenPBS, PBS Professional or Torque, according to the site's ``pbs``."""

    name = "pbs"
    queue = PbsQueue()
    suffix = ".pbs"
    submit = "qsub"
    allocate = "qsub -I"
    launcher = "ssh"
    identity = IDENTITY
    restarted = RESTARTED
    header_text = HEADER_TEXT
    comments: Literal["beside", "above"] = "above"
    resumes: ClassVar[Dict[str, str]] = {
        "chain": "qsub of the next job, with the options of this one",
        "requeue": "qrerun",
    }
    flags: ClassVar[Dict[str, str]] = {"partition": "q", "account": "A", "array": "J"}
    takes_arguments = False
    node_properties = True
    time_option = "walltime"
    dask_cluster = "PBSCluster"
    dask_options: ClassVar[Dict[str, Option]] = {"N": "{name}", "o": "{logs}/", "r": "n"}
    dask_find = ("qselect", "-N", "{name}")
    dask_cancel = ("qdel",)
    job_variables = "PBS_"
    job_number = "PBS_JOBID"
    client_variables = ("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_EXEC", "PBS_HOME", "PBS_SERVER")
    other_job_variables = ("NCPUS",)
    # only an Open MPI built with PBS's library finds the job's nodes
    mpirun_options: Tuple[Word, ...] = ("--hostfile", Expansion('"$PBS_NODEFILE"'))

    def directives(self, job: Job) -> List[Directive]:
        """Return one directive for each reason, with all options of that reason."""
        lines: Dict[str, str] = {}
        for name, value in {**_needs(job), **job.options}.items():
            if value is not False:
                why = REASONS.get(name, SITE)
                lines[why] = f"{lines.get(why, '#PBS')} {_option(name, value)}"
        rows = [(line, why) for why, line in lines.items()]
        if job.spec.spares or job.spec.shrink:
            rows.append((f"#PBS {TOLERATE[job.site.pbs]}", "a lost node does not end the job: see above"))
        return rows + [(f"#PBS {require_one_line(text)}", SITE) for text in job.site.directives]

    def computed_options(self, job: Job) -> Set[str]:
        """Return the options that jobgen computes; ``l`` can be any resource."""
        return {*_needs(job), "l"}

    def flag_options(self, site: Site) -> Dict[str, str]:
        """Return ``flags``, with Torque's option for arrays."""
        return {**self.flags, **({"array": "t"} if site.pbs == "torque" else {})}

    def site_lines(self, job: Job) -> List[Tuple[str, str]]:
        """Return values that PBS does not provide inside a job."""
        return [
            (f"directives_gpus={job.gpus_per_node}", "GPUs of a node, if PBS does not report them"),
            (f"directives_cpus={job.cpus_per_node}", "cores of a node"),
            (f"save_seconds={job.spec.save_seconds}", "kept for the last save before the time limit"),
        ]

    def array(self, job: Job, *, tasks: int, at_once: int) -> Array:
        """Add -J (Torque: -t). OpenPBS accepts only arrays whose jobs are rerunnable (qsub(1B), -J)."""
        torque = job.site.pbs == "torque"
        again = job if torque else msgspec.structs.replace(job, options={**job.options, "r": "y"})
        row = (f"#PBS -{'t' if torque else 'J'} {array_range(tasks, at_once)}", array_directive_reason(at_once))
        return Array([*self.directives(again), row], "$PBS_ARRAYID" if torque else "$PBS_ARRAY_INDEX")

    def submission(self, path: str, arguments: List[str]) -> List[str]:  # noqa: ARG002 -- they are in the script
        """Return qsub -V, which passes the whole environment to the job, as Slurm does."""
        return ["qsub", "-V", path]

    def interactive(self, job: Job, path: str) -> List[str]:
        """Return qsub -I for an interactive job that runs the script instead of a shell."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise JobgenError(
                "no-terminal",
                "qsub needs a terminal as standard input and output to open a shell on a node.",
            )
        words = ["qsub", "-I", "-V"]
        for name, value in {**_needs(job), **job.options}.items():
            if value is not False and name not in BATCH_OPTIONS:
                words += words_of(_option(name, value), what=f"options.{name}:")
        words += directive_words(job.site)
        return [*words, "-x", path] if job.site.pbs == "torque" else [*words, "--", "/bin/bash", path]

    def settings_of(self, arguments: List[str]) -> Dict[str, str]:
        """Return the arguments as SLIPWAY_ARGS, written into the script: ``qsub -v`` would split them at commas."""
        return {"SLIPWAY_ARGS": join(arguments)} if arguments else {}


def _needs(job: Job) -> Dict[str, Option]:
    once = job.site.resume == "none" and not job.options.get("J")  # OpenPBS requires rerunnable arrays (qsub(1B))
    again = "n" if once or job.spec.task in BUILDS else "y"
    name: Dict[str, Option] = {"S": "/bin/bash", "N": job.spec.name, "j": "oe", "r": again}
    return {**name, **_nodes(job), "walltime": time_limit(job.spec.minutes)}


def _nodes(job: Job) -> Dict[str, Option]:
    nodes, cpus, ranks = job.spec.nodes + job.spec.spares, job.cpus_per_node, job.ranks_per_node
    properties = "".join(f":{text}" for text in job.site.node_properties)
    if job.site.pbs == "torque":
        gpus = f":gpus={job.gpus_per_node}" if job.gpus_per_node else ""
        found: Dict[str, Option] = {"nodes": f"{nodes}:ppn={cpus}{gpus}{properties}"}
        return {**found, "mem": f"{nodes * job.mem_per_node}mb"} if job.mem_per_node else found
    gpus = f":ngpus={job.gpus_per_node}" if job.gpus_per_node else ""
    # without ompthreads, PBS sets OMP_NUM_THREADS of each rank to all cores of its node
    memory = f":mem={job.mem_per_node}mb" if job.mem_per_node else ""
    chunk = f"{nodes}:ncpus={cpus}{gpus}{memory}:mpiprocs={ranks}:ompthreads={max(1, cpus // ranks)}{properties}"
    return {"select": chunk, "place": "scatter"}


def _option(name: str, value: Option) -> str:
    """Return ``-q gpu`` for one-letter options and ``-l walltime=01:00:00`` for resources."""
    if len(name) > 1:
        return require_one_line(f"-l {name}={value}")
    return require_one_line(f"-{name}" if value is True else f"-{name} {value}")


SCHEDULER = PBS()
