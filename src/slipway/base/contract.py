"""The contract between job scripts, ``jobgen`` and the training program, each fact once.

File names of a run folder, fields of its status, time constants, and the settings of job scripts. No import outside
of the standard library, and Python 3.9 suffices: login nodes are old. ``build/generate`` writes from here what Bash and
people read: ``jobscripts/lib/settings.bash`` and the tables of ``docs/contract.md``.
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional, Tuple

VERSION = "0.1.0"
"""Version of the distribution, and of the library of the job scripts."""

# --- The run folder -------------------------------------------------------------------------------------------------

STATUS = "status.json"
STOP = "STOP"
LOCK = "lock"
METRICS = "metrics.jsonl"
GOODPUT = "goodput.jsonl"
"""How the time of the attempts was spent; see ``slipway.base.goodput``."""
PROVENANCE = "run.json"
CONFIG = "config.toml"
"""The resolved configuration, written by the trainer."""
CHECKPOINTS = "checkpoints"
COMPILED = "compiled"
"""What torch.compile has made on rank 0's node, an archive for each kind of node (checkpoint/compile_cache.py)."""
LATEST = "latest"
"""Link to the newest checkpoint."""
BEST = "best"
"""Link to the one with the best validation metric."""
FIGURES = "figures"
PROFILE = "profile"
"""What ``trainer --profile`` leaves: a trace and a summary of each rank that it was asked for."""
TENSORBOARD = "tensorboard"
WANDB = "wandb"
MLFLOW = "mlruns"
TRACKERS = "trackers.json"
"""By which ids trackers know the run."""
JOB_SCRIPT = "job.sh"
"""The job script with the settings that it was submitted with; it continues the run."""
LIBRARY = "lib"
"""The library of that script."""
INPUT_CONFIG = "input.toml"
"""Copy of SLIPWAY_CONFIG, from which the run was begun."""
REQUEUES = "requeues"
"""A line ``COUNT JOB`` each time that the run goes on by itself; the last one of a job counts for it."""
SESSIONS = "sessions"
"""Folders of sessions in other folders than the run folder of their job, a line each; relative if they are within."""
LOGS = "logs"
"""A folder for each attempt, named by its number."""
ATTEMPT_ERRORS = "stderr.log"
ATTEMPT_OUTPUT = "stdout.log"
"""Under Dask: what the ranks have written there, as no scheduler keeps the client's log."""
ATTEMPT_CODE = "code"
"""Exit code of the launch."""
ATTEMPT_CAUSE = "cause"
"""``CODE SENTENCE``: why the first rank that was refused ended before training; see ``slipway.base.cause``."""
ATTEMPT_JOB = "job"
"""``SCHEDULER JOB``: who started the attempt, and as which job."""
ATTEMPT_PROCESS = "process"
"""``HOST PID TICKS``: the script that has begun the attempt, and when that process began."""
ATTEMPT_ACCOUNT = "account.json"
"""What the attempt has used: nodes, GPUs or cores, seconds, and how busy the GPUs were."""
ATTEMPT_GUARD = "guard.log"
"""What guard.sh has done, if it had to."""
ATTEMPT_NOTIFY = "notify.log"
"""What the program of SLIPWAY_NOTIFY has said."""
ATTEMPT_ANSWERS = "answers"
"""The nodes that answered once the attempt had died."""
ATTEMPT_SCRATCH = "scratch"
"""The attempt's folder on the nodes' local disks, while that may still be there."""
ATTEMPT_DASK = "dask"
"""Of a client: how it has asked for nodes, and which have come; see ``trainer.launch.dask``."""


def verdict_file(attempt: int) -> str:
    """Return the name of the file that says how an attempt ended: one line, STATE STEP REASON."""
    return f"verdict.{attempt}"


def checkpoint_folder(step: int) -> str:
    """Return the name of the folder that holds the checkpoint of ``step``."""
    return f"step_{step:08d}"


def checkpoint_step(name: str) -> Optional[int]:
    """Return the step of the checkpoint in the folder ``name``; None if that is no such name."""
    number = name[len("step_") :] if name.startswith("step_") else ""
    return int(number) if number.isdecimal() else None


VERDICTS: Dict[str, str] = {
    "done": "training is complete, or as far as `--stop-epoch` says",
    "out-of-time": "stopped for the time limit, resumable, and a step further than at its start",
    "stopped": "stopped early and resumable, for another reason or without a step gained",
    "failed": "trying again unchanged cannot help: configuration, NaN, full disk",
}
"""STATE of a verdict. A rank that lost a peer leaves none."""

# --- Time constants, in seconds -------------------------------------------------------------------------------------

HEARTBEAT = 10.0
"""Between two signs of life: the modification time of the lock."""
STALE = 60.0
"""Age of the last sign of life from which on the owner of a run folder counts as dead."""

# --- Exit codes -----------------------------------------------------------------------------------------------------

EXIT_USAGE = 2
EXIT_STOPPED = 75
"""Stopped early and resumable (EX_TEMPFAIL of sysexits.h)."""
EXIT_CONFIG = 78
"""Trying again unchanged cannot help (EX_CONFIG of sysexits.h)."""
CAUSE_CODES = (EXIT_USAGE, EXIT_CONFIG)
"""Exit codes that can be a cause: a rank never ends with one of them because another rank has ended."""

# --- Settings of job scripts ----------------------------------------------------------------------------------------


class SettingKind(NamedTuple):
    """What values a setting may have."""

    pattern: str
    """Extended regular expression, for Bash and Python alike, of the whole value."""
    expected: str
    """The same in words."""


def choice(*values: str) -> SettingKind:
    """Return the kind of a setting that has one of ``values``."""
    return SettingKind(f"^({'|'.join(values)})$", " or ".join(values))


SWITCH = SettingKind("^[01]$", "0 or 1")
COUNT = SettingKind("^[1-9][0-9]{0,5}$", "a whole number, at least 1")
FEW = SettingKind("^[1-9][0-9]{0,2}$", "a whole number from 1 to 999")
NUMBER = SettingKind("^(0|[1-9][0-9]{0,5})$", "a whole number, at least 0")
SECONDS = SettingKind(
    "^([1-9][0-9]{0,5}|0?[.]0{0,2}[1-9][0-9]{0,2})$", "seconds: a whole number, or a part of one such as 0.5"
)
PATH = SettingKind("^[^[:cntrl:]]+$", "a path without control characters")
ABSOLUTE = SettingKind("^/[^[:cntrl:]]+$", "an absolute path without control characters, other than /")
NAME = SettingKind("^[A-Za-z0-9._-]+$", "a name of letters, digits, dot, dash and underscore")
TEXT = SettingKind("^[^[:cntrl:]]*$", "text on one line")
ARGUMENTS = SettingKind("", "text")


class Setting(NamedTuple):
    """A variable of the environment in which a job script is submitted, or started."""

    name: str
    kind: SettingKind
    comment: str
    """What stands beside it in a script."""
    about: str
    """What the contract says of it."""
    optional: bool = False
    """Whether it may be empty."""


_TRAINING = (
    Setting("USE_CONTAINER", SWITCH, "1: in SLIPWAY_IMAGE; 0: in SLIPWAY_VENV",
            "1: every process runs in `SLIPWAY_IMAGE` by Apptainer; 0: in the virtual environment `SLIPWAY_VENV`"),
    Setting("BACKEND", choice("ddp", "horovod", "single"), "ddp or horovod",
            "how ranks train together: `ddp` by PyTorch, `horovod`, or `single` for one process; a script that cannot "
            "launch it names the one that can"),
    Setting("SLIPWAY_IMAGE", PATH, "container image; image_build.job makes it",
            "the image: a SIF file, or a sandbox folder; of Pyxis a squashfs file; of Podman and Pyxis also a name in "
            "a registry (`docker://...`)"),
    Setting("SLIPWAY_VENV", PATH, "virtual environment; venv_build.job makes it",
            "the virtual environment, or conda's; `conda:NAME`: conda's of that name; `modules`: the Python of the "
            "site's modules; `local`: made on the local disk of each node, from `SLIPWAY_WHEELHOUSE`"),
    Setting("SLIPWAY_CONFIG", PATH, "what the trainer trains, and how",
            "the trainer's CONFIG.toml"),
    Setting("SLIPWAY_SCRIPT", PATH, "your own Python script, in place of the trainer",
            "a Python script to run in place of the trainer", optional=True),
    Setting("SLIPWAY_ADAPT", SWITCH, "0: your script runs without lib/sitecustomize.py",
            "0: of `SLIPWAY_SCRIPT` neither arguments nor environment nor `init_process_group` are changed "
            "([guide.md](guide.md#what-a-job-changes-for-your-script)), and the ranks are not counted; by default 1"),
    Setting("SLIPWAY_DATA", PATH, "folder, squashfs image or tar; empty: built-in sets",
            "the data: a folder, or a squashfs image or a tar of one "
            "([data.md](data.md#one-file-in-place-of-a-million)). The folder is the trainer's `--data-dir`; a script "
            "of yours finds it in `DATA`, or any other file that is named here", optional=True),
    Setting("SLIPWAY_OUTPUT", PATH, "run folders are made here; on a disk that all nodes share",
            "the folder in which run folders are made"),
    Setting("SLIPWAY_RUN_DIR", PATH, "the run folder to begin or to continue",
            "the run folder, to begin a run in it or to continue the one that it holds; by default "
            "`$SLIPWAY_OUTPUT/<name>-<job>`", optional=True),
    Setting("SLIPWAY_DEVICE", choice("cuda", "cpu", "auto"), "cuda, cpu, or auto: a GPU where there is one",
            "the trainer's `--device`; unless it is `cpu` the image gets the GPUs"),
    Setting("SLIPWAY_RANKS_PER_NODE", FEW, "empty: as many as the job's GPUs suffice for",
            "processes that train on each node; by default one for each GPU that the job was given, or for each "
            "`SLIPWAY_DEVICES_PER_RANK` of them; without a scheduler one for each GPU that torch can use, or two on "
            "the CPU, and more than there are GPUs are refused", optional=True),
    Setting("SLIPWAY_DEVICES_PER_RANK", FEW, "GPUs of each rank, if more than one",
            "GPUs of each rank, by default 1; where set, the trainer's `--devices-per-rank`", optional=True),
    Setting("SLIPWAY_NODES", COUNT, "nodes that Dask asks for",
            "how many nodes a client asks for, each by a job of its own"),
    Setting("SLIPWAY_MIN_NODES", COUNT, "begin with so many, if no more have come in time; empty: all",
            "the least number of nodes with which training begins once `SLIPWAY_WAIT_SECONDS` are over; by default all "
            "of `SLIPWAY_NODES`", optional=True),
    Setting("SLIPWAY_WAIT_SECONDS", COUNT, "how long to wait for the nodes",
            "how long a client waits for its nodes"),
    Setting("SLIPWAY_MAX_REQUEUES", NUMBER, "how often the script may requeue itself",
            "how often a run goes on by itself, after a time limit or for lack of healthy nodes; what the scheduler "
            "itself requeues does not count, and a submission by hand begins to count anew"),
    Setting("SLIPWAY_MAX_RESTARTS", NUMBER, "how often a job starts ranks again that have died",
            "how often a job starts its ranks again after a rank, a launcher or a node has died; 0: never"),
    Setting("SLIPWAY_SPARES", NUMBER, "nodes of the job that wait to replace lost ones",
            "how many nodes of the job do not train, but wait, checked and with all copies, to replace one that is "
            "lost"),
    Setting("SLIPWAY_SHRINK", SWITCH, "1: go on with fewer nodes where too few are left",
            "1: where too few nodes are left, the run goes on with fewer until the next job"),
    Setting("SLIPWAY_NOTIFY", PATH, "a program to run at restarts and at the end",
            "a program that is run as `PROGRAM EVENT RUN_DIR MESSAGE` at a `restart`, where a node is lost or "
            "suspect (`exclude`), and at the `end`, for `SLIPWAY_NOTIFY_SECONDS` at most each", optional=True),
    Setting("SLIPWAY_NOTIFY_SECONDS", SECONDS, "limit of each run of SLIPWAY_NOTIFY",
            "how long the program of `SLIPWAY_NOTIFY` may run; by default 20"),
    Setting("SLIPWAY_PROBE_SECONDS", SECONDS, "limit within which a healthy node starts a process",
            "how long a node may take to start a process after an attempt has died, and the scheduler to answer; "
            "then they are asked once more, for three times as long. By default 20"),
    Setting("SLIPWAY_PROFILER", choice("nsys"), "nsys: profile each rank by Nsight Systems",
            "`nsys`: each rank runs under NVIDIA's Nsight Systems, and leaves a report in the run "
            "folder ([report.md](report.md#profiles))", optional=True),
    Setting("SLIPWAY_LOCAL_DISK", PATH, "of each node, for caches, temporary files and copies",
            "a disk of each node; a folder of the job's own is made on it, and removed at the end"),
    Setting("SLIPWAY_STAGE", SWITCH, "1: copy image and data to SLIPWAY_LOCAL_DISK first",
            "1: image and data are copied to the local disk of each node first; a tar is unpacked there"),
    Setting("SLIPWAY_PREFLIGHT_SECONDS", COUNT, "limit of the preflight; more for slow disks",
            "how long the preflight may take on the slowest node, and what comes before it; copies, and an environment "
            "on each node, have an hour, or this if it is more"),
    Setting("SLIPWAY_ARGS", ARGUMENTS, "arguments of the training program, quoted as in a shell",
            "arguments of the training program, quoted as in a shell, where a scheduler hands none to a script (PBS)",
            optional=True),
    Setting("SLIPWAY_LIB", PATH, "folder of the library",
            "the folder of the library, where it is neither beside the script nor in `jobscripts/lib` of the folder of "
            "submission", optional=True),
    Setting("SLIPWAY_TRUSTED_FOLDER", ABSOLUTE, "a folder whose disk has one mode for all files",
            "a folder in which it is not looked at who can write what a job runs, as its file system shows one mode "
            "for all files ([below](#who-may-write)); you answer for that", optional=True),
)  # fmt: skip

_BUILDING = (
    Setting("SLIPWAY_VARIANT", NAME, "a name in containers/pins: cuda, cuda12, cpu",
            "which pins the image, or the virtual environment, is made from: a name in `containers/pins`"),
    Setting("SLIPWAY_WHEELHOUSE", PATH, "folder of `make wheelhouse`: then no network is needed",
            "a folder that `make wheelhouse` filled; nothing is then taken from a network",
            optional=True),
    Setting("SLIPWAY_PYTHON", PATH, "Python 3.11 or later",
            "what the virtual environment is made with"),
    Setting("SLIPWAY_HOROVOD", SWITCH, "1: Horovod too, built against the MPI on PATH",
            "1: Horovod too, built against the MPI on `PATH`"),
    Setting("SLIPWAY_NCCL_PATH", PATH, "build Horovod with this NCCL, and the CUDA in CUDA_HOME",
            "Horovod's NCCL, in place of torch's, built with the CUDA in `CUDA_HOME`", optional=True),
    Setting("SLIPWAY_BASE_IMAGE", TEXT, "another base than the pins': a registry's name, or docker-archive:PATH",
            "the image's base, in place of the pins'", optional=True),
    Setting("SLIPWAY_BUILD_ARGS", TEXT, "KEY=VALUE words for the recipe",
            "`KEY=VALUE` words for the image's recipe", optional=True),
)  # fmt: skip

SETTINGS: Dict[str, Setting] = {setting.name: setting for setting in (*_TRAINING, *_BUILDING)}
"""Every setting by its name, in the order in which the contract lists them."""

BUILD_SETTINGS: Tuple[str, ...] = tuple(setting.name for setting in _BUILDING)

OTHER_VARIABLES: Tuple[str, ...] = (
    "SLIPWAY_CACHE",
    "SLIPWAY_CLIENT",
    "SLIPWAY_EXPORTED",
    "SLIPWAY_FORBID_SKIPS",
    "SLIPWAY_LAUNCH",
    "SLIPWAY_NODE_STARTED",
    "SLIPWAY_SITES",
    "SLIPWAY_TEST_IMAGE",
    "SLIPWAY_TRACKERS",
    "SLIPWAY_WRITE_GOLDEN",
)
"""Variables with the prefix that are no settings: of builds and tests, what jobs and clients export (see job.bash and
dask.bash), and what the sessions of scripts read."""


def refusal(name: str, value: str) -> Optional[str]:
    """Return why ``value`` is no value of the setting ``name``, in one line; None if it is one."""
    setting = SETTINGS[name]
    # To Python $ is also the place before a line break at the end.
    pattern = setting.kind.pattern.replace("[:cntrl:]", r"\x00-\x1f\x7f").replace("$", r"\Z")
    if re.search(pattern, value) or (setting.optional and not value):
        return None
    return f"{name} is {value!r}: it must be {setting.kind.expected}"
