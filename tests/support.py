"""Start real runs of the trainer, observe them, and end exactly the processes that were started."""

import ctypes
import hashlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from safetensors.torch import load_file

import many
from forkserver import Forked

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "configs" / "digits.toml"
MARK = "SLIPWAY_TEST_RUN"
LIMIT = 900.0
"""Seconds after which a run counts as hung."""
FORKS = True
"""True to fork this environment's Python (forkserver.py) instead of starting it."""


def unshared(namespace: str) -> list[str]:
    """Return the words that start a command in a new namespace, mount or net.

    Root needs no user namespace, and gets none: a chroot or a container may forbid them.
    """
    return ["unshare", f"--{namespace}", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def pins(variant: str) -> dict[str, str]:
    """Return the pins of an image variant, as a shell with an empty environment reads them."""
    script = 'set -a; . "$1"; env -0'
    path = ROOT / "containers" / "pins" / f"{variant}.env"
    out = subprocess.check_output(["env", "-i", "sh", "-c", script, "sh", path], text=True)
    return dict(entry.split("=", 1) for entry in out.split("\0") if entry)


def _inside() -> list[str]:
    """Return the words that run a command in the image SLIPWAY_TEST_IMAGE, with this checkout's sources."""
    image = os.environ.get("SLIPWAY_TEST_IMAGE")
    if not image:
        return []
    apptainer = subprocess.check_output([ROOT / "build" / "apptainer"], text=True).strip()
    return [apptainer, "exec", "--bind", str(ROOT), "--bind", f"{ROOT}/src:/opt/slipway/src", image]


INSIDE = _inside()
PROGRAM = ["python" if INSIDE else sys.executable, "-m", "trainer"]
TRAINER = [*INSIDE, *PROGRAM]
"""Command of the trainer as one process, in the image or in this environment."""


def free_port() -> int:
    """Return a free TCP port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def launch_words(launcher: str, ranks: int, *, program: Sequence[str] = ("-m", "trainer", "--backend")) -> list[str]:
    """Return the command that starts ``program``, with its backend, on ``ranks`` ranks of this machine."""
    python = PROGRAM[0]
    match launcher:
        case "single":
            return [*INSIDE, python, *program, "single"]
        case "spawn":
            return [*TRAINER, "--nproc-per-node", str(ranks)]
        case "forked":
            return [python, str(ROOT / "tests" / "fork_ranks.py"), str(ranks), *program, "ddp"]
        case "torchrun":
            words = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks)]
            return [*INSIDE, *words, *program, "ddp"]
        case "horovodrun":
            return [*INSIDE, "horovodrun", "--gloo", "-np", str(ranks), python, *program, "horovod"]
        case "mpirun":
            words = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]
            return [*INSIDE, *words, python, *program, "horovod"]
    raise AssertionError(launcher)


class Launch:
    """A running launch: the launcher and all processes below it, identified by their session or a mark.

    If the program runs in this environment's Python, it is forked from a process that has imported the trainer's
    modules and ``preload``, unless ``imports`` is true.
    """

    def __init__(
        self, words: list[str], log: Path, *, imports: bool = False, preload: Sequence[str] = (), **env: str
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.log = log
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # Every rank has one thread: bitwise results need a fixed number, and there are few cores.
        environ = os.environ | root | {"OMP_NUM_THREADS": "1", MARK: self.mark, **env}
        log.write_bytes(b"")
        self.process: subprocess.Popen[bytes] | Forked
        if FORKS and words[0] == sys.executable and not imports:
            self.process = Forked(words[1:], log, environ, ROOT, preload)
            return
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def pids(self) -> list[int]:
        """Return the IDs of all live processes of this run."""
        return [pid for pid, _ in self._processes()]

    def rank_pid(self, rank: int) -> int:
        """Return the process that trains as ``rank``: the youngest with that rank in its variables or name."""
        found = self.rank_pids(rank)
        assert found, f"no process of rank {rank}"
        return found[-1]

    def rank_pids(self, rank: int) -> list[int]:
        """Return the processes of ``rank``, lowest ID first: some programs of mpirun, the rank, its workers."""
        names = ("RANK=", "HOROVOD_RANK=", "OMPI_COMM_WORLD_RANK=")
        wanted = {f"{name}{rank}".encode() for name in names}
        found = [
            pid
            for pid, environ in self._processes()
            if (wanted & environ and _is_python(pid)) or _name(pid) == f"trainer-rank{rank}"
        ]
        return sorted(found)

    def _processes(self) -> Iterator[tuple[int, set[bytes]]]:
        """Yield each process and its environment; a forked process has the server's environment."""
        mark = f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environ = {*(folder / "environ").read_bytes().split(b"\0")}
                    state, _, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
                except OSError:  # it has ended, or belongs to another user
                    continue
                if state not in "ZX" and (mark in environ or int(session) == self.process.pid):
                    yield int(folder.name), environ

    def wait(self, limit: float = LIMIT) -> int:
        """Wait for the launcher and return its exit code in a shell's form (128 + signal)."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {limit} s:\n{self.output}") from None
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        """Kill all processes of this run at once, like a power loss."""
        assert self.all_ended(kill=True)
        self.process.wait()

    def all_ended(self, limit: float = LIMIT, *, kill: bool = False) -> bool:
        """Wait up to ``limit`` seconds until no process of this run remains; return whether this happened.

        With ``kill``, kill the processes, including those that start meanwhile.
        """
        deadline = time.monotonic() + limit
        while left := self.pids():
            for pid in left if kill else []:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return not left

    def until(self, condition: Callable[[], object], what: str, limit: float = LIMIT) -> None:
        """Wait until ``condition`` holds; fail if the run ends or the limit passes first."""
        deadline = time.monotonic() + limit
        while not condition():
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {what} within {limit} s:\n{self.output}"
            time.sleep(0.005)


@contextmanager
def started(
    words: list[str], log: Path, *, imports: bool = False, preload: Sequence[str] = (), **env: str
) -> Iterator[Launch]:
    """Start a run. At the end assert that no process remains, and kill any that do."""
    launch = Launch(words, log, imports=imports, preload=preload, **env)
    try:
        yield launch
        launch.wait()
        assert launch.all_ended(), "processes were left behind"
    finally:
        launch.kill()


def output_of(words: list[str], log: Path, *, code: int = 0, imports: bool = False, **env: str) -> str:
    """Start a run, wait for its end, expect exit ``code``, and return its output."""
    with started(words, log, imports=imports, **env) as launch:
        actual = launch.wait()
    assert actual == code, f"exit code {actual} instead of {code}:\n{launch.output}"
    return launch.output


def training(
    launcher: str, ranks: int, out: Path, *flags: str, config: Path = DIGITS, imports: bool = False, **env: str
) -> AbstractContextManager[Launch]:
    """Start the trainer with ``started``; its log is beside ``out``."""
    words = [*launch_words(launcher, ranks), str(config), "--output-dir", str(out), *flags]
    return started(words, _log(out), imports=imports, **env)


def train(
    launcher: str,
    ranks: int,
    out: Path,
    *flags: str,
    config: Path = DIGITS,
    code: int = 0,
    imports: bool = False,
    **env: str,
) -> str:
    """Run the trainer to its end, expect exit ``code``, and return its output."""
    words = [*launch_words(launcher, ranks), str(config), "--output-dir", str(out), *flags]
    return output_of(words, _log(out), code=code, imports=imports, **env)


def _log(out: Path) -> Path:
    return out.with_name(f"{out.name}.{time.monotonic_ns()}.log")


def train_many(launcher: str, ranks: int, trainings: Mapping[Path, Sequence[str]], log: Path) -> list[str]:
    """Train in each folder with its flags, sequentially in one start of the ranks; return each output."""
    file = log.with_suffix(".json")
    file.write_text(json.dumps([[str(DIGITS), "--output-dir", str(out), *flags] for out, flags in trainings.items()]))
    program = [str(ROOT / "tests" / "many.py"), str(file)]
    with started(launch_words(launcher, ranks, program=program), log) as launch:
        code = launch.wait(LIMIT + 10 * len(trainings))
    assert code == 0, launch.output
    return launch.output.split(many.MARK)[1:]


def last_step(out: Path) -> int:
    """Return the last optimizer step in metrics.jsonl; 0 if there is none yet."""
    try:
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return max((json.loads(line)["step"] for line in lines), default=0)
    except (OSError, ValueError):
        return 0


def status(out: Path) -> dict:
    return json.loads((out / "status.json").read_text(encoding="utf-8"))


def verdict(out: Path, attempt: int = 1) -> str:
    """Return an attempt's verdict for the job script; "" if there is none."""
    path = out / f"verdict.{attempt}"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def environment_under_file_size_limit():
    """Return the variables for a process whose files are limited, so that it writes neither bytecode nor coverage."""
    without_coverage = {name: value for name, value in os.environ.items() if name != "COVERAGE_PROCESS_CONFIG"}
    return without_coverage | {"PYTHONDONTWRITEBYTECODE": "1"}  # Python would cache modules cut off at the limit


@contextmanager
def file_size_limit(size):
    """Limit this process's files to ``size`` bytes, so that writes fail half-way, as on a full disk.

    Python caches no modules meanwhile: it would keep those that were cut off at the limit.
    """
    before, cached = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = cached
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def weights(checkpoint: Path) -> dict:
    """Return the tensors of a checkpoint's model, without using the trainer."""
    return load_file(checkpoint / "model.safetensors")


def digest(checkpoint: Path) -> str:
    """Return a SHA-256 digest of the names, shapes and bytes of the model's tensors."""
    total = hashlib.sha256()
    for name, tensor in sorted(weights(checkpoint).items()):
        total.update(f"{name} {tuple(tensor.shape)}".encode())
        total.update(tensor.numpy().tobytes())
    return total.hexdigest()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:  # it has ended
        return ""


def _is_python(pid: int) -> bool:
    try:
        return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def permissions_hold() -> Iterator[None]:
    """Enforce file permissions for this thread, and threads that it starts, even for root: capset(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(0x20080522, 0), (_Sets * 2)()
    assert libc.capget(ctypes.byref(header), sets) == 0
    before = sets[0].effective
    sets[0].effective &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(ctypes.byref(header), sets) == 0
    try:
        yield
    finally:
        sets[0].effective = before
        assert libc.capset(ctypes.byref(header), sets) == 0
