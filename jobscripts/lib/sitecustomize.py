"""What a script that nobody changed needs to run as ranks of a job: Python imports this first, by PYTHONPATH.

It acts when the script joins the others, by torch.distributed or by Horovod, in whatever environment that is installed:

- Its files can be read by the group where the site wants that (TRAINER_UMASK).
- The size of the group that was formed goes to RUN_DIR/logs/ATTEMPT; at its end the job compares it with its plan.
- MASTER_ADDR and MASTER_PORT that the script has set are set back, or it would wait for a store that nobody opens.
  SLURM_PROCID, which under torchrun is that of the node, is set to RANK, and what else Slurm says of a task likewise.
  A script with an option --local_rank or --local-rank gets it as the first argument, as torch.distributed.launch does;
  not where that may be an option of a subcommand. What a rank starts is left as it is.
- A script that joins as another rank than it was started as, since it starts ranks of its own, or joins nobody, since
  it is for another launcher, is ended with a line: it would wait for ever, or train as often as there are ranks.

SLIPWAY_ADAPT=0 leaves it out.
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
"""Ranks of the job, and those on each node."""
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
SLURM = {
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE": "LOCAL_WORLD_SIZE",
    "SLURM_CPUS_PER_TASK": "CPUS_PER_RANK",
}
"""What Slurm says of a task, and the launcher, or the job script, of a rank."""
LOCAL_RANK_OPTIONS = ("--local_rank", "--local-rank")
MARK = "SLIPWAY_RANK_PID"
"""Number of the rank's process, by which those that it starts know that they are none."""


def say(text: str) -> None:
    """Print a line into the job's log."""
    print(f"slipway: {text}", file=sys.stderr, flush=True)


def refuse(text: str) -> NoReturn:
    """End the process before it waits for ranks that never come."""
    say(f"error[joins-other-ranks]: {text}")
    sys.exit(78)


def record(size: int, rank: int) -> None:
    """Leave the size of a group, once, in the log folder of the attempt."""
    folder = Path(STARTED.get("RUN_DIR", ""), "logs", STARTED.get("TRAINER_ATTEMPT", ""))
    if rank != 0 or not folder.is_dir():
        return
    try:
        (folder / f"world.{socket.gethostname()}.{os.getpid()}").write_text(f"{size}\n", encoding="ascii")
    except OSError as error:
        say(f"cannot write down how many ranks have joined: {error}")


def around_torch(module: ModuleType) -> None:
    """Watch ``torch.distributed.init_process_group``."""
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
    """Make the arguments of ``init_process_group`` and the launcher's environment fit, or end this process."""
    started = [int(STARTED["RANK"]), int(STARTED["WORLD_SIZE"])]
    names = ("rank", "world_size")
    joins = [outer if given.get(name, -1) == -1 else given[name] for name, outer in zip(names, started)]
    if joins != started or (is_child() and "rank" in given):
        if PER_NODE > 1:
            refuse(
                f"the script joins as rank {joins[0]} of {joins[1]}, and was started as rank {started[0]} of "
                f"{started[1]}: it must take both from RANK and WORLD_SIZE. If it starts ranks of its own, set "
                f"SLIPWAY_RANKS_PER_NODE=1"
            )
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # its own rank 0 opens the store
        return
    if given.get("store") is not None or given.get("init_method") not in {None, "env://"}:
        return
    for name in RENDEZVOUS:
        before, now = STARTED.get(name), os.environ.get(name)
        if before and now != before:
            if started[0] == 0:
                say(f"{name}={now} was set by the script; the ranks meet at {before}")
            os.environ[name] = before


def around_horovod(module: ModuleType) -> None:
    """Watch ``init`` of Horovod, for whatever framework."""
    inner = module.HorovodBasics.init

    @functools.wraps(inner)
    def init(basics: Any, *args: Any, **kwargs: Any) -> Any:
        result = inner(basics, *args, **kwargs)
        record(basics.size(), basics.rank())
        if PLANNED > 1 and basics.size() == 1:
            refuse(f"Horovod has joined 1 of {PLANNED} ranks: set BACKEND=horovod, or submit horovod.job")
        return result

    module.HorovodBasics.init = init


WATCHED = {"torch.distributed.distributed_c10d": around_torch, "horovod.common.basics": around_horovod}


class Watcher(MetaPathFinder):
    """Changes a module of WATCHED right after its import."""

    def find_spec(self, fullname: str, *_args: Any) -> ModuleSpec | None:
        """Return the spec that others find, with a loader that does that."""
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
    """Tell what this process starts that it is no rank; but no job that is submitted from here."""
    if MARK not in STARTED:
        os.environ[MARK] = str(os.getpid())
        os.environ["SLIPWAY_EXPORTED"] = f"{STARTED.get('SLIPWAY_EXPORTED', '')}\n{MARK}={os.environ[MARK]}\n"


def is_child() -> bool:
    """Return whether a rank has started this process: arguments and environment are as the script wants them."""
    return os.environ.get(MARK) != str(os.getpid())


def adapt_to_launcher() -> None:
    """Give Slurm's variables the numbers of the ranks, and the script its option."""
    for name, own in SLURM.items():
        if name in STARTED and own in STARTED:
            os.environ[name] = STARTED[own]
    option = local_rank_option()
    if option:
        words = f"{option}={STARTED['LOCAL_RANK']}"
        sys.argv.insert(1, words)  # of two, parsers take the last
        if STARTED["RANK"] == "0":
            say(f"the script is given {words} (not with SLIPWAY_ADAPT=0)")


def local_rank_option() -> str:
    """Return the option by which the script, in its own file, takes its local rank; "" if it is not to get one.

    With subcommands only the parser that has them knows an option in the first place.
    """
    try:
        text = Path(sys.argv[0]).read_bytes()
    except (OSError, IndexError):  # no file: python -c, a worker
        return ""
    if not any(option.encode() in text for option in LOCAL_RANK_OPTIONS):
        return ""
    import ast  # noqa: PLC0415 -- most scripts have none

    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # Python says it next
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
                say(f"the script has subcommands, and is not given {option}: LOCAL_RANK says it too")
            return ""
    return option


def import_next() -> None:
    """Import the environment's own sitecustomize, which this one hides."""
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
import_next()
