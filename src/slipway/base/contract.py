"""Constants that job scripts, ``jobgen`` and the training program share.

File names in a run folder, verdicts, time constants, exit codes, and the settings of job scripts. This module imports
only the standard library and supports Python 3.9, because login nodes are old. From it, ``build/generate`` writes
``jobscripts/lib/settings.bash`` and tables of docs/reference/settings.md and docs/reference/verdicts.md.
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional, Tuple

VERSION = "0.1.0"
"""Version of the distribution and of the script library."""

# --- The run folder -------------------------------------------------------------------------------------------------

STATUS = "status.json"
STOP = "STOP"
LOCK = "lock"
METRICS = "metrics.jsonl"
GOODPUT = "goodput.jsonl"
"""Time accounting of the attempts; see ``slipway.base.goodput``."""
PROVENANCE = "run.json"
CONFIG = "config.toml"
"""The resolved configuration, written by the trainer."""
CHECKPOINTS = "checkpoints"
COMPILED = "compiled"
"""Compiled code of torch.compile from rank 0's node, one archive per kind of node (checkpoint/compile_cache.py)."""
LATEST = "latest"
"""Link to the newest checkpoint."""
BEST = "best"
"""Link to the checkpoint with the best validation metric."""
FIGURES = "figures"
PROFILE = "profile"
"""Output of ``trainer --profile``: a trace and a summary for each requested rank."""
TENSORBOARD = "tensorboard"
WANDB = "wandb"
MLFLOW = "mlruns"
TRACKERS = "trackers.json"
"""The run's ids in experiment trackers."""
JOB_SCRIPT = "job.sh"
"""The job script with its settings at submission; it continues the run."""
LIBRARY = "lib"
"""Copy of the script library that ``job.sh`` uses."""
INPUT_CONFIG = "input.toml"
"""Copy of SLIPWAY_CONFIG at the start of the run."""
REQUEUES = "requeues"
"""A line ``COUNT JOB`` for each automatic requeue or resubmission; a job's last line gives its count."""
SESSIONS = "sessions"
"""Folders of sessions that differ from their job's run folder, one per line; relative if inside the run folder."""
LOGS = "logs"
"""Contains a folder for each attempt, named by its number."""
ATTEMPT_ERRORS = "stderr.log"
ATTEMPT_OUTPUT = "stdout.log"
"""Standard output of the ranks, under Dask only: no scheduler keeps the client's log."""
ATTEMPT_CODE = "code"
"""Exit code of the launch."""
ATTEMPT_CAUSE = "cause"
"""``CODE SENTENCE``: why the first failing rank ended before training; see ``slipway.run.cause``."""
ATTEMPT_JOB = "job"
"""``SCHEDULER JOB``: the scheduler and job that started the attempt."""
ATTEMPT_PROCESS = "process"
"""``HOST PID TICKS``: the process of the job script that began the attempt, and its start time."""
ATTEMPT_ACCOUNT = "account.json"
"""Resources that the attempt used: nodes, GPUs or cores, seconds, and GPU utilization."""
ATTEMPT_GUARD = "guard.log"
"""Actions of guard.sh, if it had to act."""
ATTEMPT_NOTIFY = "notify.log"
"""Output of the SLIPWAY_NOTIFY program."""
ATTEMPT_ANSWERS = "answers"
"""Nodes that answered after the attempt died."""
ATTEMPT_SCRATCH = "scratch"
"""The attempt's scratch folder on the nodes' local disks, as long as it may still exist."""
ATTEMPT_DASK = "dask"
"""A Dask client's requests for nodes and the nodes that arrived; see ``trainer.launch.dask``."""


def verdict_file(attempt: int) -> str:
    """Return the name of an attempt's verdict file. The file holds one line, STATE STEP REASON."""
    return f"verdict.{attempt}"


def checkpoint_folder(step: int) -> str:
    """Return the folder name of the checkpoint at ``step``."""
    return f"step_{step:08d}"


def checkpoint_step(name: str) -> Optional[int]:
    """Return the step of the checkpoint folder ``name``, or None if it is not the name of one."""
    number = name[len("step_") :] if name.startswith("step_") else ""
    return int(number) if number.isdecimal() else None


VERDICTS: Dict[str, str] = {
    "done": "training is complete, or has reached `--stop-epoch`",
    "out-of-time": "stopped for the time limit, resumable, with at least one new step",
    "stopped": "stopped early and resumable, for another reason or without a new step",
    "failed": "repeating the run unchanged cannot help: configuration, NaN, full disk",
}
"""STATE of a verdict. A rank that lost a peer writes no verdict."""

# --- Time constants, in seconds -------------------------------------------------------------------------------------

HEARTBEAT = 10.0
"""Interval between heartbeats, which update the lock's modification time."""
STALE = 60.0
"""Age of the last heartbeat at which the owner of a run folder counts as dead."""

# --- Exit codes -----------------------------------------------------------------------------------------------------

EXIT_USAGE = 2
EXIT_STOPPED = 75
"""Stopped early and resumable (EX_TEMPFAIL of sysexits.h)."""
EXIT_CONFIG = 78
"""Repeating the command unchanged cannot help (EX_CONFIG of sysexits.h)."""
CAUSE_CODES = (EXIT_USAGE, EXIT_CONFIG)
"""Exit codes that can be a cause: a rank never exits with one of them because another rank has ended."""

# --- Settings of job scripts ----------------------------------------------------------------------------------------


class SettingKind(NamedTuple):
    """Valid values of a setting."""

    pattern: str
    """Extended regular expression for the whole value, valid in both Bash and Python."""
    expected: str
    """Description of the valid values, for error messages."""


def choice(*values: str) -> SettingKind:
    """Return the kind of a setting whose value is one of ``values``."""
    return SettingKind(f"^({'|'.join(values)})$", " or ".join(values))


SWITCH = SettingKind("^[01]$", "0 or 1")
COUNT = SettingKind("^[1-9][0-9]{0,5}$", "a whole number, at least 1")
FEW = SettingKind("^[1-9][0-9]{0,2}$", "a whole number from 1 to 999")
NUMBER = SettingKind("^(0|[1-9][0-9]{0,5})$", "a whole number, at least 0")
SECONDS = SettingKind(
    "^([1-9][0-9]{0,5}|0?[.]0{0,2}[1-9][0-9]{0,2})$", "seconds: a whole number, or a fraction below 1 such as 0.5"
)
PATH = SettingKind("^[^[:cntrl:]]+$", "a path without control characters")
ABSOLUTE = SettingKind("^/[^[:cntrl:]]+$", "an absolute path without control characters, other than /")
NAME = SettingKind("^[A-Za-z0-9._-]+$", "a name of letters, digits, dot, dash and underscore")
TEXT = SettingKind("^[^[:cntrl:]]*$", "text on one line")
ARGUMENTS = SettingKind("", "text")


class Setting(NamedTuple):
    """An environment variable that configures a job script at submission or start."""

    name: str
    kind: SettingKind
    comment: str
    """Comment next to the setting in a job script."""
    about: str
    """Description in docs/reference/settings.md."""
    optional: bool = False
    """Whether the setting may be empty."""


_TRAINING = (
    Setting("USE_CONTAINER", SWITCH, "1: in SLIPWAY_IMAGE; 0: in SLIPWAY_VENV",
            "1: each process runs in `SLIPWAY_IMAGE`, with the site's container runtime; 0: in the virtual environment "
            "`SLIPWAY_VENV`"),
    Setting("BACKEND", choice("ddp", "horovod", "single"), "ddp or horovod",
            "how ranks train together: `ddp` (PyTorch), `horovod`, or `single` for one process; a job script that "
            "cannot launch the backend names the script that can"),
    Setting("SLIPWAY_IMAGE", PATH, "container image",
            "the image, in a form that the site's container runtime runs "
            "(docs/reference/site.md#container-runtimes)"),
    Setting("SLIPWAY_VENV", PATH, "virtual environment; venv_build.job builds it",
            "the folder of a virtual or conda environment; `conda:NAME`: the conda environment of that name; "
            "`modules`: the Python of the site's modules; `local`: installed on each node's local disk from "
            "`SLIPWAY_WHEELHOUSE`"),
    Setting("SLIPWAY_CONFIG", PATH, "configuration file of the trainer",
            "the trainer's CONFIG.toml"),
    Setting("SLIPWAY_SCRIPT", PATH, "your Python script, instead of the trainer",
            "a Python script to run instead of the trainer, or `-m` and the name of a module, which Python finds from "
            "the folder of submission", optional=True),
    Setting("SLIPWAY_ADAPT", SWITCH, "0: your script runs without lib/sitecustomize.py",
            "0: the job does not change the arguments, environment and `init_process_group` of `SLIPWAY_SCRIPT` "
            "(docs/reference/script-environment.md), and does not count the ranks; by default 1"),
    Setting("SLIPWAY_DATA", PATH, "folder, squashfs, tar or zip; empty: built-in sets",
            "the data: a folder, or a squashfs image, tar or zip file of one "
            "(docs/howto/packed-data.md). The folder is the trainer's `--data-dir`; a user "
            "script finds the folder, or any other file given here, in `DATA`", optional=True),
    Setting("SLIPWAY_OUTPUT", PATH, "parent of run folders, on a disk that all nodes share",
            "the folder in which run folders are created"),
    Setting("SLIPWAY_RUN_DIR", PATH, "the run folder to begin or to continue",
            "the run folder in which a run begins, or whose run continues; by default "
            "`$SLIPWAY_OUTPUT/<name>-<job>`", optional=True),
    Setting("SLIPWAY_DEVICE", choice("cuda", "cpu", "auto"), "cuda, cpu, or auto: a GPU if there is one",
            "the trainer's `--device`; unless it is `cpu`, the container gets access to the GPUs"),
    Setting("SLIPWAY_RANKS_PER_NODE", FEW, "empty: as many as the GPUs of the job allow",
            "ranks on each node; by default one per GPU of the job, or per `SLIPWAY_DEVICES_PER_RANK` GPUs; without a "
            "scheduler one per GPU that torch can use, or two on the CPU, and more ranks than GPUs are refused",
            optional=True),
    Setting("SLIPWAY_DEVICES_PER_RANK", FEW, "GPUs of each rank, if more than one",
            "GPUs of each rank, by default 1; if set, also the trainer's `--devices-per-rank`", optional=True),
    Setting("SLIPWAY_NODES", COUNT, "nodes that Dask requests",
            "number of nodes that a client requests, each with a separate job"),
    Setting("SLIPWAY_MIN_NODES", COUNT, "least nodes to start with; empty: all",
            "minimum number of nodes with which training starts after `SLIPWAY_WAIT_SECONDS`; by default all "
            "`SLIPWAY_NODES`", optional=True),
    Setting("SLIPWAY_WAIT_SECONDS", COUNT, "maximum time to wait for the nodes",
            "maximum time that a client waits for its nodes"),
    Setting("SLIPWAY_MAX_REQUEUES", NUMBER, "maximum number of requeues by this script",
            "maximum number of automatic requeues of a run, after a time limit or for lack of healthy nodes; requeues "
            "by the scheduler itself do not count, and manual resubmission resets the count"),
    Setting("SLIPWAY_MAX_RESTARTS", NUMBER, "maximum number of restarts per start of the job",
            "maximum number of times that a job restarts its ranks after a rank, a launcher or a node died; each start "
            "of the job, such as a requeue, counts from 0; 0: never"),
    Setting("SLIPWAY_SPARES", NUMBER, "spare nodes that wait to replace lost ones",
            "number of the job's nodes that do not train, but wait, checked and with all copies, to replace a lost "
            "node"),
    Setting("SLIPWAY_SHRINK", SWITCH, "1: continue on fewer nodes if too few remain",
            "1: if too few nodes remain, the run continues on fewer nodes until the next job"),
    Setting("SLIPWAY_NOTIFY", PATH, "program to run at restarts, lost nodes and the end",
            "a program that the job runs as `PROGRAM EVENT RUN_DIR MESSAGE` at a `restart`, if a node is lost or "
            "suspect (`exclude`), and at the `end`, each for at most `SLIPWAY_NOTIFY_SECONDS`", optional=True),
    Setting("SLIPWAY_NOTIFY_SECONDS", SECONDS, "time limit of the SLIPWAY_NOTIFY program",
            "time limit of the `SLIPWAY_NOTIFY` program; by default 20"),
    Setting("SLIPWAY_PROBE_SECONDS", SECONDS, "time limit for a healthy node to start a process",
            "time limit, after an attempt has died, for a node to start a process and for the scheduler to respond; "
            "the job then retries once, with three times the limit. By default 20"),
    Setting("SLIPWAY_PROFILER", choice("nsys"), "nsys: profile each rank with Nsight Systems",
            "`nsys`: each rank runs under NVIDIA's Nsight Systems, and writes a report to the run "
            "folder (docs/howto/profile.md)", optional=True),
    Setting("SLIPWAY_LOCAL_DISK", PATH, "each node's disk for caches, temporary files, copies",
            "a disk of each node; the job creates a scratch folder on it, and removes it at the end"),
    Setting("SLIPWAY_STAGE", SWITCH, "1: copy image and data to SLIPWAY_LOCAL_DISK first",
            "1: the job first copies image and data to each node's local disk; a tar file is unpacked there"),
    Setting("SLIPWAY_PREFLIGHT_SECONDS", COUNT, "limit of each step before the launch; copies: 1 h",
            "time limit of the preflight, and of each job step before it, on the slowest node; copies, and an "
            "environment on each node, have one hour, or this limit if it is longer"),
    Setting("SLIPWAY_ARGS", ARGUMENTS, "arguments of the training program, quoted as in a shell",
            "arguments of the training program, quoted as in a shell, for schedulers that pass no arguments to a job "
            "script (PBS)", optional=True),
    Setting("SLIPWAY_LIB", PATH, "folder of the script library",
            "the folder of the script library, if it is neither next to the job script nor in `jobscripts/lib` of the "
            "folder of submission", optional=True),
    Setting("SLIPWAY_TRUSTED_FOLDER", ABSOLUTE, "a folder whose disk has one mode for all files",
            "a folder in which the job does not check who can write the files that it runs, because the file system "
            "shows one mode for all files ([below](#who-may-write)); you are responsible for that", optional=True),
)  # fmt: skip

_BUILDING = (
    Setting("SLIPWAY_VARIANT", NAME, "a name in containers/pins: cuda, cuda12, cpu",
            "the pins from which the image or virtual environment is built: a name in `containers/pins`"),
    Setting("SLIPWAY_WHEELHOUSE", PATH, "folder of `make wheelhouse`: then no network is needed",
            "a folder that `make wheelhouse` filled; the build then uses no network",
            optional=True),
    Setting("SLIPWAY_PYTHON", PATH, "Python 3.11 or later",
            "the Python that creates the virtual environment"),
    Setting("SLIPWAY_HOROVOD", SWITCH, "1: also Horovod, built against the MPI on PATH",
            "1: also Horovod, built against the MPI on `PATH`"),
    Setting("SLIPWAY_NCCL_PATH", PATH, "build Horovod with this NCCL, and the CUDA in CUDA_HOME",
            "Horovod's NCCL, instead of torch's, built with the CUDA in `CUDA_HOME`", optional=True),
    Setting("SLIPWAY_BASE_IMAGE", TEXT, "base image instead of the pins': a registry's name, or docker-archive:PATH",
            "the image's base, instead of the pins'", optional=True),
    Setting("SLIPWAY_BUILD_ARGS", TEXT, "KEY=VALUE words for the recipe",
            "`KEY=VALUE` words for the image's recipe", optional=True),
)  # fmt: skip

SETTINGS: Dict[str, Setting] = {setting.name: setting for setting in (*_TRAINING, *_BUILDING)}
"""All settings by name, in the order of docs/reference/settings.md."""

BUILD_SETTINGS: Tuple[str, ...] = tuple(setting.name for setting in _BUILDING)

OTHER_VARIABLES: Tuple[str, ...] = (
    "SLIPWAY_CACHE",
    "SLIPWAY_CLIENT",
    "SLIPWAY_EXPORTED",
    "SLIPWAY_FORBID_SKIPS",
    "SLIPWAY_LAUNCH",
    "SLIPWAY_NODE_STARTED",
    "SLIPWAY_SITE",
    "SLIPWAY_SITES",
    "SLIPWAY_TEST_IMAGE",
    "SLIPWAY_TRACKERS",
    "SLIPWAY_WRITE_GOLDEN",
)
"""Variables with the prefix SLIPWAY_ that are not settings: those of builds and tests, those that jobs and clients
export (see job.bash and dask.bash), and those that sessions of scripts read."""


def refusal(name: str, value: str) -> Optional[str]:
    """Return a one-line error if ``value`` is invalid for the setting ``name``, else None."""
    setting = SETTINGS[name]
    # In Python, $ also matches before a line break at the end.
    pattern = setting.kind.pattern.replace("[:cntrl:]", r"\x00-\x1f\x7f").replace("$", r"\Z")
    if re.search(pattern, value) or (setting.optional and not value):
        return None
    return f"{name} is {value!r}: it must be {setting.kind.expected}"
