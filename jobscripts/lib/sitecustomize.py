"""Adapter that runs an unchanged user script as the ranks of a job; Python imports it at startup, from PYTHONPATH.

Most of it acts when the script initializes torch.distributed or Horovod, whichever Python environment contains them:

- The umask lets the group read the script's files if the site allows that (TRAINER_UMASK).
- The size of the process group is written to RUN_DIR/logs/ATTEMPT. At its end the job compares it with its plan.
- MASTER_ADDR and MASTER_PORT are reset if the script has changed them, or it would wait for a store that no rank opens.
  SLURM_PROCID, which under torchrun is the node's, is set to RANK, and Slurm's other variables of a task accordingly.
  A script with an option --local_rank or --local-rank gets it as the first argument, as from torch.distributed.launch,
  unless it may be an option of a subcommand. The processes that a rank starts are not adapted.
- A script is ended with a one-line error if it joins with another rank than the launcher's, because it starts ranks
  itself, or if it forms no group, because it is for another launcher. It would wait forever, or train once per rank.

SLIPWAY_ADAPT=0 disables the adapter.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import re
import socket
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

FOLDER = Path(__file__).resolve().parent
STARTED = dict(os.environ)
"""The environment that the launcher gave this process."""
IS_RANK = all(STARTED.get(name, "").isdecimal() for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
PLANNED, PER_NODE = (int(STARTED.get(f"TRAINER_{name}") or 1) for name in ("WORLD_SIZE", "RANKS_PER_NODE"))
"""Number of ranks of the job, and of ranks on each node."""
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
SLURM = {
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE": "LOCAL_WORLD_SIZE",
    "SLURM_CPUS_PER_TASK": "CPUS_PER_RANK",
}
"""Slurm's variables of a task, and those of the launcher or job script that contain the rank's values."""
LOCAL_RANK_OPTIONS = ("--local_rank", "--local-rank")
MARK = "SLIPWAY_RANK_PID"
"""Variable with the rank's process number, by which its child processes detect that they are not ranks."""


def say(text: str) -> None:
    """Print a line to the job's log."""
    print(f"slipway: {text}", file=sys.stderr, flush=True)


def refuse(text: str) -> NoReturn:
    """Print an error and exit with 78, before the process waits for ranks that never arrive."""
    say(f"error[joins-other-ranks]: {text}")
    sys.exit(78)


def record(size: int, rank: int) -> None:
    """Write the size of a process group to the attempt's log folder, once per group."""
    folder = Path(STARTED.get("RUN_DIR", ""), "logs", STARTED.get("TRAINER_ATTEMPT", ""))
    if rank != 0 or not folder.is_dir():
        return
    try:
        (folder / f"world.{socket.gethostname()}.{os.getpid()}").write_text(f"{size}\n", encoding="ascii")
    except OSError as error:
        say(f"cannot write the size of the process group: {error}")


def wrap_torch(module: ModuleType) -> None:
    """Wrap ``torch.distributed.init_process_group``."""
    inner = module.init_process_group
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if IS_RANK:
            prepare_rendezvous(signature.bind_partial(*args, **kwargs).arguments)
        inner(*args, **kwargs)
        record(module.get_world_size(), module.get_rank())

    module.init_process_group = init_process_group


def prepare_rendezvous(given: dict[str, Any]) -> None:
    """Make the environment match the arguments of ``init_process_group``, or end this process if they conflict."""
    started = [int(STARTED["RANK"]), int(STARTED["WORLD_SIZE"])]
    names = ("rank", "world_size")
    joins = [outer if given.get(name, -1) == -1 else given[name] for name, outer in zip(names, started)]
    if joins != started or (is_child() and "rank" in given):
        if PER_NODE > 1:
            refuse(
                f"the script joins as rank {joins[0]} of {joins[1]}, but was started as rank {started[0]} of "
                f"{started[1]}: it must read both from RANK and WORLD_SIZE. If it starts ranks itself, set "
                f"SLIPWAY_RANKS_PER_NODE=1"
            )
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # the script's own rank 0 opens the store
        return
    if given.get("store") is not None or given.get("init_method") not in {None, "env://"}:
        return
    for name in RENDEZVOUS:
        before, now = STARTED.get(name), os.environ.get(name)
        if before and now != before:
            if started[0] == 0:
                say(f"the script has set {name}={now}; the ranks use {before} instead")
            os.environ[name] = before


def wrap_horovod(module: ModuleType) -> None:
    """Wrap Horovod's ``init``, for all frameworks."""
    inner = module.HorovodBasics.init

    @functools.wraps(inner)
    def init(basics: Any, *args: Any, **kwargs: Any) -> Any:
        result = inner(basics, *args, **kwargs)
        record(basics.size(), basics.rank())
        if PLANNED > 1 and basics.size() == 1:
            refuse(f"Horovod has connected 1 of {PLANNED} ranks: set BACKEND=horovod, or submit horovod.job")
        return result

    module.HorovodBasics.init = init


WATCHED = {"torch.distributed.distributed_c10d": wrap_torch, "horovod.common.basics": wrap_horovod}


class Watcher(MetaPathFinder):
    """Import hook that wraps the functions of a module in WATCHED directly after its import."""

    def find_spec(self, fullname: str, *_args: Any) -> ModuleSpec | None:
        """Return the spec that the other finders return, with a loader that wraps the functions."""
        if fullname not in WATCHED:
            return None
        change = WATCHED.pop(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def mark_rank() -> None:
    """Mark this process as the rank, for its child processes; a job that it submits ignores the mark."""
    if MARK not in STARTED:
        os.environ[MARK] = str(os.getpid())
        os.environ["SLIPWAY_EXPORTED"] = f"{STARTED.get('SLIPWAY_EXPORTED', '')}\n{MARK}={os.environ[MARK]}\n"


def is_child() -> bool:
    """Return whether a rank has started this process, whose arguments and environment the script has chosen."""
    return os.environ.get(MARK) != str(os.getpid())


def adapt_to_launcher() -> None:
    """Set Slurm's variables to the rank's values, and add the script's local-rank option to its arguments."""
    for name, own in SLURM.items():
        if name in STARTED and own in STARTED:
            os.environ[name] = STARTED[own]
    option = local_rank_option()
    if option:
        words = f"{option}={STARTED['LOCAL_RANK']}"
        sys.argv.insert(1, words)  # first, as parsers use the last of two
        if STARTED["RANK"] == "0":
            say(f"added {words} to the script's arguments (not with SLIPWAY_ADAPT=0)")


def local_rank_option() -> str:
    """Return the local-rank option that the script's file defines; "" if the script must not get one.

    In a script with subcommands, the option must be defined by the main parser to be accepted as the first argument.
    """
    try:
        text = Path(sys.argv[0]).read_bytes()
    except (OSError, IndexError):  # not a file: python -c, a worker process
        return ""
    if not any(option.encode() in text for option in LOCAL_RANK_OPTIONS):
        return ""
    import ast  # noqa: PLC0415 -- most scripts have no such option

    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # Python reports it when it runs the script
        return ""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    methods = [(node.func.attr, node.func.value, node.args) for node in calls if isinstance(node.func, ast.Attribute)]
    found = {
        (word.value, getattr(parser, "id", ""))
        for method, parser, words in methods
        for word in words
        if method == "add_argument" and isinstance(word, ast.Constant) and word.value in LOCAL_RANK_OPTIONS
    }
    option = max((name for name, _ in found), default="")  # --local_rank before --local-rank
    commands = [parser for method, parser, _ in methods if method in {"add_subparsers", "add_parser"}]
    if option and commands:
        names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        names += [node.arg for node in nodes if isinstance(node, ast.arg)]
        mains = {getattr(parser, "id", "") for method, parser, _ in methods if method == "add_subparsers"}
        if {parser for _, parser in found} != mains or any(names.count(name) != 1 for name in mains):
            if STARTED["RANK"] == "0":
                say(f"{option} is not added because the script has subcommands: use LOCAL_RANK instead")
            return ""
    return option


def import_hidden_sitecustomize() -> None:
    """Import the Python environment's own sitecustomize, which this one hides."""
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401, PLC0415
    except ImportError:
        sys.modules["sitecustomize"] = this


if re.fullmatch("[0-7]{3}", STARTED.get("TRAINER_UMASK", "")):
    os.umask(int(STARTED["TRAINER_UMASK"], 8))
sys.path[:] = [path for path in sys.path if Path(path).resolve() != FOLDER]
sys.meta_path.insert(0, Watcher())
if IS_RANK:
    mark_rank()
    if not is_child():
        adapt_to_launcher()
import_hidden_sitecustomize()
