"""Runs job scripts in Bash with stub programs that record their arguments (bin/stub)."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from jobgen.cli import main
from messages import assert_error, messages

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "jobscripts"
STUBS = Path(__file__).parent / "bin"

HOSTILE = "a b 'c' \"d\", e:f $(id) * \\ [x"
"""A folder name as hostile as file systems allow."""
PBS_SITES = {"pbs", "torque"}
GONE = 30.0
"""Seconds in which everything that a script started must end."""

DONE = {"STUB_VERDICT": "done 9 trained"}
WAIT = 'touch "$STUB_LOG.up"; while [ ! -e "$STUB_LOG.go" ]; do sleep 0.05; done'
"""For STUB_ON_TRAIN: wait, ignoring signals of the scheduler, until the test continues it: a rank at its last save."""
JOIN = 'echo 4 >"$RUN_DIR/logs/$TRAINER_ATTEMPT/world.node1.7"'
"""Code of a script whose four ranks join each other, for STUB_ON_TRAIN."""
USED = re.compile(r"(?m)^[\w.-]+: .* = .*-hours.*$")
"""The line that reports what an attempt has used."""
OUT_OF_TIME = {"STUB_VERDICT": "out-of-time 9 time-limit"}


@dataclass(repr=False)
class Ended:
    """Result of a script, and the calls that the stubs recorded."""

    code: int
    err: str
    calls: list[list[str]]
    env: dict[str, str]
    run_dir: Path

    def __repr__(self) -> str:
        return f"ended with {self.code}:\n{self.err}"

    def of(self, name: str) -> list[list[str]]:
        """Return the calls of a program."""
        return [words for words in self.calls if words[0] == name]

    @property
    def notes(self) -> list[str]:
        """Return the script's messages, without those of every attempt."""
        always = re.compile(
            r"[\w.-]+: (?!error\[|warning\[).*"
            r"(\(sha256 \w+\)|: \w+=\$?'|\d+ .*rank(\(s\),|s?) .*\d+ .*(node|GPU)|on the CPU|= [\d.]+ \S+-hours)"
        )
        return [line for line in self.err.splitlines() if not always.match(line)]

    def assert_refused(self, slug: str, *values: object) -> None:
        """Assert exit code 78 and a one-line error that names these values."""
        assert (self.code, len(self.notes)) == (78, 1), self
        assert_error(self.err, slug, *values)

    @property
    def requeues(self) -> list[int]:
        """Return the numbers at the end of the requeue warning: the requeue's number and the limit."""
        [text] = [message.text for message in messages(self.err) if message.slug == "requeued"]
        return [int(number) for number in re.findall(r"\d+", text)][-2:]

    @property
    def continuation_words(self) -> list[str]:
        """Return the words of the command that continues the run, which end the last line."""
        return shlex.split(re.search(r"(?<= )(bash|sbatch|qsub) .*", self.err.splitlines()[-1])[0])

    @property
    def requeued(self) -> bool:
        """Return whether the script requeued itself in Slurm."""
        return any(words[1] == "requeue" for words in self.of("scontrol"))


def read_env(path: Path) -> dict[str, str]:
    """Return the output of ``env --null``."""
    if not path.exists():
        return {}
    return dict(item.split("=", 1) for item in path.read_text(errors="surrogateescape").split("\0") if item)


@dataclass(repr=False)
class Project:
    """A folder from which scripts are submitted."""

    folder: Path
    spool: Path
    started: list["Started"] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """Return the path where the stubs record their calls."""
        return self.spool / "calls"

    @property
    def up(self) -> Path:
        """Return the file that shows that a stub waits (WAIT)."""
        return Path(f"{self.log}.up")

    def go(self) -> None:
        """Let a waiting stub continue."""
        Path(f"{self.log}.go").touch()

    def on_disk(self) -> list[Path]:
        """Return the files on the local disk."""
        return list((self.folder / "disk").iterdir())

    def render(self, spec: str, site: str, *settings: str) -> Path:
        """Return the path of a script that jobgen writes."""
        path = self.spool / "rendered" / f"{spec}{'.pbs' if site in PBS_SITES else '.job'}"
        path.parent.mkdir(exist_ok=True)
        words = [word for setting in settings for word in ("--set", setting)]
        assert main(["render", spec, "--site", site, *words, "--output", str(path)]) == 0
        return path

    def environment(self, script: Path, /, *arguments: str, **env: str | None) -> dict[str, str]:
        """Return the environment that a scheduler gives to ``script``; None in ``env`` removes a variable."""
        fixed = {
            "PATH": f"{STUBS}:/usr/bin:/bin",
            "HOME": str(self.spool),
            "STUB_LOG": str(self.log),
            "STUB_PYTHON": sys.executable,
            "STANDIN_MODULES": str(ROOT / "tests" / "standins"),
            "SLIPWAY_LOCAL_DISK": str(self.folder / "disk"),
            "USE_CONTAINER": "1",
            "SLIPWAY_MAX_RESTARTS": "0",  # test_restarts.py has its own
            "PYTHONPATH": "/somewhere",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",  # where the tests run as root
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        slurm = {
            "SLURM_SUBMIT_DIR": str(self.folder),
            "SLURM_JOB_ID": "4711",
            "ENVIRONMENT": "BATCH",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
            "SLURM_GPUS_ON_NODE": "2",
        }
        if is_single(script):
            one = {"SLURM_JOB_NODELIST": "node1", "SLURM_JOB_CPUS_PER_NODE": "8", "SLURM_GPUS_ON_NODE": "1"}
            slurm |= {**one, "STUB_NODES": "node1"}
        pbs = {
            "PBS_O_WORKDIR": str(self.folder),
            "PBS_JOBID": "4711.head",
            "PBS_NODEFILE": str(self.spool / "nodes"),
            "NCPUS": "8",
            "SLIPWAY_ARGS": shlex.join(arguments),
        }
        if script.parent.name == "rendered":
            fixed["SLIPWAY_LIB"] = str(SCRIPTS / "lib")
        found: dict[str, str | None] = {**fixed, **(pbs if is_pbs(script) else slurm), **env}
        return {name: value for name, value in found.items() if value is not None}

    def start(self, script: str | Path, /, *arguments: str, cwd: Path | None = None, **env: str | None) -> "Started":
        """Start a script: a committed one by its name, another by its path."""
        path = SCRIPTS / script
        env = {"SLIPWAY_RUN_DIR": str(self.folder / f"run {len(self.started) + 1}"), **env}
        self.log.unlink(missing_ok=True)
        Path(f"{self.log}.env").unlink(missing_ok=True)
        words = [str(path), *(() if is_pbs(path) else arguments)]
        # STUB_SCRIPT_PID is the script's, for stubs that send it signals.
        words = ["bash", "-c", 'export STUB_SCRIPT_PID=$$; exec "$@"', "-", *words]
        words = ["env", "--default-signal=INT", *words]  # which tests ignore if they run in the background
        process = subprocess.Popen(
            words,
            cwd=cwd or (self.spool if is_pbs(path) else self.folder),
            env=self.environment(path, *arguments, **env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(Started(process, self, Path(env["SLIPWAY_RUN_DIR"] or path.parent)))
        return self.started[-1]

    def run(self, script: str | Path, /, *arguments: str, cwd: Path | None = None, **env: str | None) -> Ended:
        """Run a script to its end."""
        return self.start(script, *arguments, cwd=cwd, **env).end()


@dataclass(repr=False)
class Started:
    """A running script."""

    process: "subprocess.Popen[bytes]"
    project: Project
    run_dir: Path

    def end(self, limit: float = 300.0) -> Ended:
        """Wait for its end."""
        try:
            _, err = self.process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            self.kill()
            _, err = self.process.communicate()
            raise AssertionError(f"still running after {limit} s:\n{err.decode(errors='replace')}") from None
        log = self.project.log
        text = log.read_text(errors="surrogateescape") if log.exists() else ""
        calls = [call.split("\0")[:-1] for call in text.split("\036\0")[:-1]]
        env = read_env(Path(f"{log}.env"))
        code = self.process.returncode
        return Ended(code if code >= 0 else 128 - code, err.decode(errors="surrogateescape"), calls, env, self.run_dir)

    def until(self, path: Path, limit: float = 300.0) -> None:
        """Wait until a file exists."""
        deadline = time.monotonic() + limit
        while not path.exists():
            assert self.process.poll() is None, f"ended before {path.name}: {self.process.communicate()[1].decode()}"
            assert time.monotonic() < deadline, f"no {path.name} within {limit} s"
            time.sleep(0.01)

    def send(self, number: signal.Signals, *, to_all: bool) -> None:
        """Send a signal to it, or to all processes of its group, as a terminal does."""
        send = os.killpg if to_all else os.kill
        send(self.process.pid, number)

    def kill(self) -> None:
        """Kill all remaining processes of its session."""
        for pid in session_of(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> dict[int, str]:
        """Return the command lines of processes of its session that still run after a while."""
        deadline = time.monotonic() + GONE
        while (found := session_of(self.process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found


def session_of(leader: int) -> dict[int, str]:
    """Return the living processes of a session, and their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if fields[3] == str(leader) and fields[0] != "Z":
                found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended
            continue
    return found


def is_pbs(script: Path) -> bool:
    """Return whether a script is started as PBS does it."""
    return script.suffix == ".pbs" or (script.name == "job.sh" and "#PBS" in script.read_text())


def is_single(script: Path) -> bool:
    """Return whether a script is for one process on one node."""
    return script.name == "single.job" or (script.name == "job.sh" and "script_name=single.job" in script.read_text())


def make_project(folder: Path, spool: Path) -> Project:
    """Create the files that scripts need in their submission folder."""
    (folder / "configs").mkdir(parents=True)
    for name in ("digits", "split-toy"):
        (folder / "configs" / f"{name}.toml").write_text("epochs = 1\n")
    (folder / "slipway.sif").touch()
    (folder / ".venv").mkdir()
    (folder / "disk").mkdir()
    shutil.copytree(STUBS, folder / ".venv" / "bin", symlinks=True)
    (folder / "my data").mkdir()
    (folder / "my train.py").touch()
    spool.mkdir()
    (spool / "nodes").write_text("node1\nnode1\nnode2\nnode2\n")
    return Project(folder, spool)


def payload_of(ended: Ended) -> list[str]:
    """Return the command line of the innermost training process: torchrun or Python."""
    trains = [words for words in ended.calls if words[0] in {"torchrun", "python3"} and "--output-dir" in words]
    return next(words for words in trains if "trainer.launch.preflight" not in words)


def option_of(ended: Ended, name: str) -> str:
    """Return the value of an option of the training process."""
    words = payload_of(ended)
    return words[words.index(name) + 1]


def launches_of(ended: Ended) -> list[list[str]]:
    """Return the outermost command line of each launch of the trainer."""
    starts = [words for words in ended.calls if words[0] in {"srun", "mpirun", "ssh", "apptainer", "torchrun"}]
    return [words for words in starts if "--output-dir" in words and "trainer.launch.preflight" not in words]


def changed_library(project: Project, name: str, old: str, new: str) -> Path:
    """Return a copy of the library with a text of the file ``name`` replaced: a shorter time limit."""
    folder = project.spool / "changed lib"
    if not folder.exists():
        shutil.copytree(SCRIPTS / "lib", folder)
        text = (folder / name).read_text()
        assert old in text, f"{name} has no {old}"
        (folder / name).write_text(text.replace(old, new))
    return folder
