"""Slurm: sbatch, srun, scontrol, sacct."""

from __future__ import annotations

import re
import sys
from typing import ClassVar, Dict, List, Mapping, Optional, Set

from jobgen.base.errors import JobgenError
from jobgen.base.job import BUILDS, Job, Option
from jobgen.base.queue import JobId, Phase, Seen, run_command, timestamp
from jobgen.base.shell import quote, require_one_line
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

REASONS = {
    "job-name": "what squeue shows",
    "account": "account to charge",
    "nodes": "any number; the script counts them",
    "time": "limit of one start; a requeue starts anew",
    "no-kill": "a lost node does not end the job",
    "requeue": "allows requeues: see Restart above",
    "open-mode": "one log for all attempts",
}
"""Reason of each directive; options that are not listed come from the site."""


GPU_OPTIONS = {"gpus-per-node", "gpus-per-task", "gres"}
"""Valid values of a site's ``gpu_request``."""
BATCH_OPTIONS = {"array", "batch", "error", "export", "export-file", "get-user-env", "input", "kill-on-invalid-dep",
                 "no-requeue", "open-mode", "output", "requeue", "signal", "wait"}  # fmt: skip
"""Options of sbatch that srun with a terminal does not have, or interprets differently."""
EARLY_SECONDS = 60
"""Seconds by which Slurm may send its warning too early (sbatch(1), --signal)."""
IDENTITY = r"""if [ -z "${SLURM_JOB_ID:-}" ]; then
    echo "$script_name: error[no-nodes]: this is not a Slurm job: submit it with sbatch, or" \
        "run it inside salloc" >&2 || :
    exit 78
fi
# Slurm's own record of this job, as a job that was submitted inside another job inherits variables
# of that one, such as SLURM_ARRAY_TASK_ID. Query twice, as a SIGTERM ends scontrol too; more
# often for a requeued array task, whose run must be found; after a SIGTERM only once more, and for
# less than Slurm's KillWait.
for nap in 0 0 ${SLURM_ARRAY_JOB_ID:+${SLURM_RESTART_COUNT:+10 10 10 10 10 10}}; do
    sleep "$nap" || :
    limit=60
    [ -z "${sigterm_at:-}" ] || limit=20
    slurm_record=$(timeout "$limit" scontrol --details show job "$SLURM_JOB_ID" 2>/dev/null |
        awk -v RS= -v job="JobId=$SLURM_JOB_ID" '$1 == job') || slurm_record=''
    [ -z "$slurm_record" ] && [ "$limit" = 60 ] || break
done
job_id=$SLURM_JOB_ID
[[ ! $slurm_record =~ ^JobId=[0-9]+\ ArrayJobId=([0-9]+)\ ArrayTaskId=([0-9]+)\  ]] ||
    job_id=${BASH_REMATCH[1]}_${BASH_REMATCH[2]}
restarted=${SLURM_RESTART_COUNT:-} # unset in a new job (job numbers can be reused)
[[ ! $slurm_record =~ \ Restarts=([0-9]+)\  ]] || restarted=${BASH_REMATCH[1]#0}
interactive=1 # inside salloc, each start of this script is a separate run
[ "${ENVIRONMENT:-}" != BATCH ] || [[ $slurm_record == *" BatchFlag=0 "* ]] || interactive=''
submit_folder=${SLURM_SUBMIT_DIR:-$PWD} # not $PWD: if the folder is missing, Slurm uses /tmp"""
SCRIPT_PATH = """\
script=$(realpath -- "$0")
if [[ $script == */slurm_script ]]; then # a copy; Command= has the original path and arguments
    script=$(sed --quiet 's/^ *Command=//p' <<<"$slurm_record")
    script=${script%"${*:+ $*}"}
    [[ $script == /* ]] && script=$(realpath --canonicalize-missing -- "$script") ||
        script=$0 # no record, or the script was read from standard input
fi"""
HEADER_TEXT = HeaderText(
    stop="scancel JOB: the ranks get SIGTERM and save; Slurm kills them after the site's KillWait@{torchrun}. The job "
    "ends and is not requeued.",
    log="Slurm's log, with all output of the ranks and without a limit, goes to the folder of submission.",
    scratch="$SLURM_JOB_ID",
    remains="A folder that stays (see Clean-up) is removed by the run's next attempt on that node, by the site's "
    "epilog, or by you on that node: `rm -rf SLIPWAY_LOCAL_DISK/slipway-$SLURM_JOB_ID.*` (docs/howto/epilogue.md).",
    clean_up=(
        ("training ends, time limit", "stays", "removed", "removed"),
        ("scancel, preemption", "stays", "removed", "removed by a job step (watch_scratch.sh)"),
        ("SIGKILL before that (KillWait)", "stays", "stays", "stays"),
        ("the first node dies", "stays", "stays", "stays"),
        ("another node dies", "stays", "removed", "stays on that node"),
    ),
    restarts=(
        ("Slurm reports a node failure before ranks fail", "Slurm (--requeue)", "no limit"),
        (
            "the first node dies, in a job with --no-kill and SLIPWAY_SPARES or SLIPWAY_SHRINK",
            "guard.sh on another node: scontrol requeue",
            "SLIPWAY_MAX_REQUEUES times, then scancel",
        ),
        ("preemption, no grace time", "Slurm (REQUEUE)", "no limit"),
        (
            "preemption, grace time",
            "not requeued, if the ranks save in that time",
            "no limit if they do not (Slurm); with send_user_signal treated like the time limit",
        ),
        (
            "stray SIGTERM in a requeued job's first minute",
            "this script",
            "SLIPWAY_MAX_REQUEUES times",
        ),
        ("scancel", "not requeued", ""),
    ),
    needs="Slurm 20.11",
    processes=" on the other nodes, a job step that wakes every 2 s until the job ends (watch_scratch.sh); with "
    "SLIPWAY_SPARES or SLIPWAY_SHRINK, a job step on one other node (guard.sh), which checks a heartbeat file every "
    "5 s;",
)
WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
"""In any other state the job has ended (squeue(1), JOB STATE CODES)."""
FIELDS = ["JobID", "State", "ExitCode", "NodeList", "Elapsed", "Timelimit", "WorkDir"]
"""Fields requested from sacct, which reports the log's path only since 23.11."""
MINE = {"JobID": "%i", "State": "%T", "Reason": "%r", "NodeList": "%N", "RunTime": "%M", "TimeLimit": "%l",
        "SubmitTime": "%V", "WorkDir": "%Z", "JobName": "%j", "Command": "%o"}  # fmt: skip
"""Fields requested from squeue, with their formats; names and paths, which may contain the separator, come last."""


SAME_AS_COMPUTED = {
    "no-requeue", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres", "ntasks", "cpus-per-gpu",
    "mem-per-cpu", "mem-per-gpu",
}  # fmt: skip
"""Options of sbatch that mean the same as, or replace, options that jobgen computes."""
OPTION_OF = {"ARRAY_INX": "array", "TIMELIMIT": "time", "MEM_PER_NODE": "mem"}
"""Options of sbatch whose variable has another name."""


class SlurmQueue:
    """Queries and cancels jobs of Slurm 20.11 or later, with or without slurmdbd."""

    name = "slurm"
    command = "scontrol"
    servers = False
    delivers_log = False

    def look(self, job: JobId) -> List[Seen]:
        """Query the controller, which drops a job minutes after its end (MinJobAge), and then sacct."""
        if job.server:  # a PBS job; Slurm's job of that number is a different one
            return []
        # without this variable, Slurm truncates a long list of array tasks with "..."
        code, out, error = run_command(["scontrol", "--oneliner", "show", "job", str(job)], SLURM_BITSTR_LEN="0")
        if code == 0:
            if seen := [each for line in out.splitlines() if (each := _of_scontrol(line))]:
                return seen
            raise JobgenError("scheduler-silent", f"Slurm's answer for job {job} is not a job: {out[:100]!r}.")
        if "Invalid job id" not in error and "not found" not in out:  # for a task: on standard output
            raise JobgenError("scheduler-silent", f"Slurm does not answer for job {job}: {error}.")
        options = ["--allocations", "--noheader", "--parsable2", f"--format={','.join(FIELDS)}"]
        code, out, _ = run_command(["sacct", f"--jobs={job}", *options])
        rows = [line.split("|", len(FIELDS) - 1) for line in out.splitlines()] if code == 0 else []  # no accounting
        return [_of_sacct(dict(zip(FIELDS, row))) for row in rows if len(row) == len(FIELDS)]

    def mine(self) -> List[Seen]:
        """Query squeue, without the user's own filters and formats; --all includes hidden partitions."""
        options = ["--me", "--all", "--noheader", f"--format={'|'.join(MINE.values())}"]
        # for the first variable, see look
        variables = {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"}
        code, out, error = run_command(["squeue", *options], without="SQUEUE_", **variables)
        if code:
            raise JobgenError("scheduler-silent", f"Slurm does not list the jobs: {error}.")
        rows = [line.split("|", len(MINE) - 1) for line in out.splitlines()]
        found = [_of_squeue(dict(zip(MINE, row))) for row in rows if len(row) == len(MINE)]
        return [job for job in found if job.phase != "ended"]

    def cancel(self, job: JobId, seen: List[Seen]) -> List[str]:  # noqa: ARG002 -- of the protocol
        """Return scancel: it sends SIGTERM to all processes of the job; the script waits while the ranks save."""
        return ["scancel", str(job)]

    def largest_array(self) -> Optional[int]:
        """Return Slurm's MaxArraySize, or None."""
        _, out, _ = run_command(["scontrol", "show", "config"])
        found = re.search(r"(?m)^MaxArraySize *= *([0-9]+)$", out)
        return int(found[1]) if found else None


def _of_scontrol(line: str) -> Optional[Seen]:
    fields = dict(re.findall(r"(?:^| )([A-Za-z/:]+)=(.*?)(?= [A-Za-z/:]+=|$)", line))
    if not line.startswith("JobId=") or "JobState" not in fields:
        return None
    is_task = {"ArrayJobId", "ArrayTaskId"} <= fields.keys()
    task = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}" if is_task else fields["JobId"]
    return _seen(task, fields["JobState"], fields, log=fields.get("StdOut", ""))


def _of_sacct(fields: Dict[str, str]) -> Seen:
    names = {"RunTime": fields["Elapsed"], "TimeLimit": fields["Timelimit"], **fields}
    log = f"{fields['WorkDir']}/slurm-{fields['JobID']}.out"  # the default; --output can change it
    return _seen(fields["JobID"], fields["State"].split(" ")[0], names, log=log)  # "CANCELLED by 1000"


def _of_squeue(fields: Dict[str, str]) -> Seen:
    number = fields["JobID"].partition("+")[0]  # 12+1 is a part of the heterogeneous job 12
    seen = _seen(number, fields["State"], fields, log="")
    submitted = timestamp(fields["SubmitTime"], "%Y-%m-%dT%H:%M:%S")
    return seen._replace(name=fields["JobName"], submitted=submitted, script=fields["Command"])


def _seen(job_id: str, state: str, fields: Dict[str, str], *, log: str) -> Seen:
    phase: Phase = "waiting" if state in WAITING else "running" if state in RUNNING else "ended"
    took = f"{fields.get('RunTime', '?')} of {fields.get('TimeLimit', '?')}"
    about = {
        "waiting": f"because of {fields['Reason']}" if fields.get("Reason", "None") != "None" else "",
        "running": f"on {fields.get('NodeList', '?')} for {took}",
        "ended": f"after {took} on {fields.get('NodeList', '?')}, exit code {fields.get('ExitCode', '?')}",
    }[phase]
    if requeued := fields.get("Restarts", "0") != "0":
        about += f", {fields['Restarts']} restart(s)"
    failed = phase == "ended" and state != "COMPLETED"
    return Seen(job_id, state, phase, about, log, fields.get("WorkDir", ""), failed, requeued=requeued)


class Slurm(Scheduler):
    """Slurm 20.11 or later, as the scheduler of job scripts."""

    name = "slurm"
    queue = SlurmQueue()
    suffix = ".job"
    submit = "sbatch"
    allocate = "salloc"
    launcher = "srun"
    identity = IDENTITY
    script_path = SCRIPT_PATH
    header_text = HEADER_TEXT
    resumes: ClassVar[Dict[str, str]] = {"requeue": "scontrol requeue"}
    early_seconds = 2 * EARLY_SECONDS
    flags: ClassVar[Dict[str, str]] = {name: name for name in ("partition", "account", "qos", "array")}
    test_option = "--test-only"
    time_option = "time"
    dask_cluster = "SLURMCluster"
    dask_options: ClassVar[Dict[str, Option]] = {
        "job-name": "{name}",
        "output": "{logs}/%j.log",
        "no-requeue": True,
        "deadline": "now+{last}seconds",
        "requeue": False,
        "signal": False,
        "open-mode": False,
    }
    dask_find = (
        "squeue", "--noheader", "--format=%A", "--name={name}", "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED",
    )  # fmt: skip
    dask_cancel = ("scancel",)
    job_variables = "SLURM_"
    job_number = "SLURM_JOB_ID"
    client_variables = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
    other_job_variables = (
        "ENVIRONMENT", "SLURMD_NODENAME", "SRUN_CPUS_PER_TASK", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    )  # fmt: skip

    def directives(self, job: Job) -> List[Directive]:
        """Return one directive for each option, then the site's ``directives`` verbatim."""
        of_site = GPU_OPTIONS & job.options.keys()  # the computed reason may not fit the site's number
        reasons = {name: why for name, why in {**REASONS, **_reasons(job)}.items() if name not in of_site}
        options: Dict[str, Option] = {**_needs(job), **job.options}
        lines = [
            (f"#SBATCH {_option(name, value)}", reasons.get(name, "asked for by the site"))
            for name, value in options.items()
            if value is not False
        ]
        return lines + [(f"#SBATCH {require_one_line(text)}", "asked for by the site") for text in job.site.directives]

    def computed_options(self, job: Job) -> Set[str]:
        """Return the options that jobgen computes, and those of sbatch that mean the same."""
        return {*_needs(job), *SAME_AS_COMPUTED}

    def without_overrides(self, environment: Mapping[str, str], job: Job) -> Dict[str, str]:
        """Return ``environment`` without the variables that replace options of a script (sbatch(1), INPUT ENVIRONMENT).

        An account or partition that neither site nor user sets is still the variable's.
        """
        fixed = {*self.computed_options(job), *job.options, "array"}
        return {name: value for name, value in environment.items() if _option_of(name) not in fixed}

    def array(self, job: Job, *, tasks: int, at_once: int) -> Array:
        """Return the directives with --array added."""
        row = (f"#SBATCH --array={array_range(tasks, at_once)}", array_directive_reason(at_once))
        return Array([*self.directives(job), row], "$SLURM_ARRAY_TASK_ID")

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Return sbatch --parsable, which prints only the job number."""
        return ["sbatch", "--parsable", path, *arguments]

    def interactive(self, job: Job, path: str) -> List[str]:
        """Return srun, which requests the nodes and starts one job step; --overlap leaves cores for steps inside it."""
        options: Dict[str, Option] = {**_needs(job), **job.options}
        words = [
            f"--{name}" if value is True else f"--{name}={value}"
            for name, value in options.items()
            if value is not False and name not in BATCH_OPTIONS
        ]
        terminal = ["--pty"] if sys.stdin.isatty() else []
        return ["srun", *words, *directive_words(job.site), "--export=ALL", "--overlap", *terminal, "bash", path]


def _option_of(variable: str) -> str:
    """Return the option of sbatch that a variable SBATCH_NAME sets; "" for any other variable."""
    prefix, _, name = variable.partition("SBATCH_")
    return "" if prefix or not name else OPTION_OF.get(name, name.lower().replace("_", "-"))


def _needs(job: Job) -> Dict[str, Option]:
    tasks = job.ranks_per_node if job.per_rank else 1
    if job.spec.task in BUILDS:
        return {
            "job-name": job.spec.name,
            "nodes": 1,
            "cpus-per-task": job.cpus_per_node,
            "mem": f"{job.mem_per_node}M" if job.mem_per_node else False,
            "time": time_limit(job.spec.minutes),
        }
    return {
        "job-name": job.spec.name,
        "nodes": job.spec.nodes + job.spec.spares,
        "no-kill": bool(job.spec.spares or job.spec.shrink),
        "ntasks-per-node": tasks,
        job.site.gpu_request: _gpus(job, tasks) if job.gpus_per_node else False,
        "cpus-per-task": max(1, job.cpus_per_node // tasks),
        "mem": f"{job.mem_per_node}M" if job.mem_per_node else False,
        "time": time_limit(job.spec.minutes),
        "signal": f"B:USR1@{job.spec.save_seconds + EARLY_SECONDS}",
        "requeue": job.site.resume == "requeue",
        "open-mode": "append",
    }


def _gpus(job: Job, tasks: int) -> str:
    """Return the number of GPUs per node, or per task, in the syntax of the site's ``gpu_request``."""
    count = job.gpus_per_node // tasks if job.site.gpu_request == "gpus-per-task" else job.gpus_per_node
    if not count:
        raise JobgenError(
            "too-few-gpus",
            f"{job.spec.name} at {job.site.name}: {tasks} ranks share {job.gpus_per_node} GPUs, but with gpu_request = "
            "'gpus-per-task' each task requests its own GPUs: lower ranks_per_node.",
        )
    words = ["gpu"] if job.site.gpu_request == "gres" else []
    words += [job.site.gpu_type] if job.site.gpu_type else []
    return ":".join([*words, str(count)])


def _reasons(job: Job) -> Dict[str, str]:
    said, why = job.site.cpu_options, "no GPU is needed"
    if job.gpus_per_node:
        said, why = job.site.options, "where the GPUs are"
    partition = why if job.options.get("partition") == said.get("partition") else "asked for by the site"
    if job.spec.task in BUILDS:
        return {
            "nodes": "one is enough",
            "time": "of the job",
            "cpus-per-task": "to compile and to compress",
            "partition": partition,
        }
    save = job.spec.save_seconds + EARLY_SECONDS
    each = job.spec.devices_per_rank
    gpus = "a rank each" if each == 1 else f"{each} for each rank"
    if job.ranks_per_node > job.gpus_per_node:
        gpus = f"for {job.ranks_per_node} ranks"
    one = {"nodes": "this script trains in one process"} if job.spec.backend == "single" else {}
    return {
        **one,
        "gpus-per-node": gpus,
        "gpus-per-task": f"of a task; {gpus}",
        "gres": f"GPUs, {gpus}",
        "mem": "of each node",
        "partition": partition,
        "ntasks-per-node": "a task is a rank" if job.per_rank else "a task starts all ranks of its node",
        "cpus-per-task": "threads and data loaders of " + ("a rank" if job.per_rank else "all ranks of a node"),
        "signal": f"to this script (B:), {save} to {save + EARLY_SECONDS} s early: save",
    }


def _option(name: str, value: Option) -> str:
    """Return an option quoted for sbatch, which splits at blanks and reads quotes and backslashes as a shell does."""
    text = require_one_line(f"--{name}" if value is True else f"--{name}={value}")
    return quote(text) if set(text) & set(" \t'\"\\#") else text


SCHEDULER = Slurm()
