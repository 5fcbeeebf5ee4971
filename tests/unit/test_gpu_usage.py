"""watch_gpus.sh and gpu_usage.py, which sample GPUs beside a command, with stubs of libcuda and NVML."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support import ROOT

LIB = ROOT / "jobscripts" / "lib"
TWO = "0000:01:00.0 80 1024 81559 0;0000:02:00.0 90 31744 81559 2;"
UNTIL_SEEN = 'n=0; until cat "$RUN_DIR"/logs/3/gpus.* >/dev/null 2>&1 || [ $((n += 1)) = 200 ]; do sleep 0.05; done'
"""A command that runs until there is a sample, at most 10 s."""
SAVES = """
import signal, sys
number = {int(sys.argv[1])}
signal.pthread_sigmask(signal.SIG_BLOCK, number)
print("up", flush=True)
signal.sigwait(number)
print("saving", flush=True)
sys.stdin.read(1)
"""
"""A command that saves after a signal, while its standard input is open."""


@pytest.fixture(scope="session")
def drivers(tmp_path_factory):
    """Return a folder with the stub libraries."""
    compiler = shutil.which("cc") or pytest.skip("needs cc")
    folder = tmp_path_factory.mktemp("drivers")
    for name in ("libcuda", "libnvidia-ml"):
        source = Path(__file__).with_name(f"{name}.c")
        words = ["-Wall", "-Werror", "-shared", "-fPIC"]
        subprocess.check_call([compiler, *words, "-o", folder / f"{name}.so.1", source])
    return folder


@pytest.fixture
def watch(tmp_path, drivers):
    """Return a function that starts a command with GPU sampling at 5 Hz."""
    lib = tmp_path / "lib of a job"
    lib.mkdir()
    shutil.copy(LIB / "watch_gpus.sh", lib)
    text = (LIB / "gpu_usage.py").read_text(encoding="utf-8")
    fast = text.replace("\nINTERVAL = 10.0\n", "\nINTERVAL = 0.2\n").replace("\nPOLL = 1.0\n", "\nPOLL = 0.1\n")
    assert fast.count("0.2") + fast.count("0.1") >= 2
    (lib / "gpu_usage.py").write_text(fast, encoding="utf-8")
    (tmp_path / "run" / "logs" / "3").mkdir(parents=True)
    started = []

    def watch(*command, device="cuda", stdin=subprocess.DEVNULL, pass_fds=(), **env):
        env = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(drivers),
            "STANDIN_CUDA": "12020 80 80",
            "STANDIN_NVML": TWO,
            "RUN_DIR": str(tmp_path / "run"),
            "TRAINER_ATTEMPT": "3",
            "GPUS_PER_NODE": "2",
            **env,
        }
        words = ["sh", lib / "watch_gpus.sh", device, *command]
        pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(words, env=env, text=True, start_new_session=True, pass_fds=pass_fds, **pipes))
        return started[-1]

    yield watch
    for process in started:
        for pid in session_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def session_of(leader):
    """Return the living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[3] == str(leader) and fields[0] != "Z":
            found.append(int(path.name))
    return found


def until(condition, *, limit=300):
    """Wait until a condition holds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def until_alone(process):
    """Wait until no process of a session is left."""
    until(lambda: not session_of(process.pid))


def until_sampled(tmp_path):
    """Wait for the first sample."""
    until(lambda: usage(tmp_path))


def usage(tmp_path):
    """Return the words of each line that the sampler wrote."""
    files = sorted((tmp_path / "run" / "logs" / "3").iterdir())
    assert [path.name[:5] for path in files] == ["gpus."] * len(files)
    return [line.split() for path in files for line in path.read_text().splitlines()]


def test_each_gpu_is_sampled_until_command_ends(watch, tmp_path):
    process = watch("sh", "-c", f"{UNTIL_SEEN}; sleep 0.7; echo out; echo err >&2; exit 7")
    assert process.communicate(timeout=300) == ("out\n", "err\n")  # nothing waits for background processes
    assert process.returncode == 7
    until_alone(process)
    one, two = usage(tmp_path)
    assert int(one[1]) >= 2
    assert one == ["0000:01:00.0", one[1], str(80 * int(one[1])), "1024", "81559"]
    assert two == ["0000:02:00.0", one[1], str(90 * int(one[1])), "31744", "81559"]


def test_watched_command_keeps_pid_and_gets_no_extra_child(watch):
    show = 'echo $$; sleep 0.5; for task in /proc/$$/task/*; do cat "$task/children"; done'
    process = watch("sh", "-c", show)
    out, _ = process.communicate(timeout=300)
    pid, *children = out.split()
    assert (pid, len(children)) == (str(process.pid), 1)  # cat itself
    until_alone(process)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_sampling_continues_after_signal_until_command_ends(watch, tmp_path, number):
    process = watch("python3", "-c", SAVES, str(int(number)), stdin=subprocess.PIPE)
    assert process.stdout.readline() == "up\n"
    until_sampled(tmp_path)
    os.killpg(process.pid, number)
    assert process.stdout.readline() == "saving\n"
    before = int(usage(tmp_path)[0][1])
    time.sleep(1)
    assert int(usage(tmp_path)[0][1]) > before
    process.communicate("x", timeout=300)
    until_alone(process)


def test_samples_before_sigkill_are_kept(watch, tmp_path):
    process = watch("sleep", "60")
    until_sampled(tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(300)
    assert len(usage(tmp_path)) == 2


def test_sampler_ends_when_command_is_killed(watch):
    process = watch("sleep", "60")
    time.sleep(0.6)
    assert len(session_of(process.pid)) == 2
    process.kill()
    process.wait(300)
    until_alone(process)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"GPUS_PER_NODE": "1"}, ["0000:01:00.0"]),  # the job's GPUs, out of those visible
        (
            {"GPUS_PER_NODE": "0", "TRAINER_RANKS_PER_NODE": "1", "DEVICES_PER_RANK": "2"},
            ["0000:01:00.0", "0000:02:00.0"],
        ),
        ({"STANDIN_NVML": TWO.replace(" 0;", " 1;")}, ["0000:02:00.0"]),  # MIG
        ({"STANDIN_NVML": TWO.partition(";")[2]}, ["0000:02:00.0"]),  # one fell off the bus
        ({"STANDIN_CUDA": "12020"}, []),
        ({"STANDIN_INIT": "803"}, []),
        ({"device": "cpu"}, []),
        ({"LOCAL_RANK": "1"}, []),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, []),
        ({"SLURM_LOCALID": "1"}, []),
        ({"LOCAL_RANK": "0", "SLURM_LOCALID": "1"}, ["0000:01:00.0", "0000:02:00.0"]),
        ({"LOCAL_RANK": "1", "TRAINER_BOUND_GPUS": "1"}, ["0000:01:00.0", "0000:02:00.0"]),
        ({"RUN_DIR": "/nowhere"}, []),
    ],
)
def test_only_gpus_of_job_are_sampled_by_first_local_rank(watch, tmp_path, env, expected):
    lasts = UNTIL_SEEN if expected else "sleep 0.9"
    process = watch("sh", "-c", lasts, **env)
    assert (process.communicate(timeout=300), process.returncode) == (("", ""), 0)
    until_alone(process)
    assert [line[0] for line in usage(tmp_path)] == expected


def test_sampler_with_hanging_driver_ends_with_command(watch, tmp_path):
    process = watch("sleep", "0.5", STANDIN_INIT="hang")
    assert process.wait(300) == 0
    until_alone(process)
    assert usage(tmp_path) == []


def test_watched_command_runs_without_python(watch, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("sh", "echo"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    process = watch("echo", "ran", PATH=str(tmp_path / "bin"))
    assert process.communicate(timeout=300) == ("ran\n", "")


@pytest.mark.parametrize(("library", "content"), [("libcuda", None), ("libcuda", b"\x7fELF"), ("libnvidia-ml", None)])
def test_broken_or_missing_gpu_libraries_do_not_affect_command(watch, drivers, tmp_path, library, content):
    """A complete library without a function that is called counts as None."""
    shutil.copytree(drivers, tmp_path / "other")
    other = (drivers / ("libnvidia-ml.so.1" if library == "libcuda" else "libcuda.so.1")).read_bytes()
    (tmp_path / "other" / f"{library}.so.1").write_bytes(content or other)
    process = watch("sleep", "0.9", LD_LIBRARY_PATH=str(tmp_path / "other"))
    assert (process.communicate(timeout=300), process.returncode) == (("", ""), 0)
    until_alone(process)
    assert usage(tmp_path) == []


def test_sampler_closes_inherited_pipes(watch):
    """The caller may wait for the end of such a pipe."""
    reader, writer = os.pipe()
    process = watch("sleep", "1", pass_fds=(writer,))
    pipe = str(Path(f"/proc/self/fd/{writer}").readlink())
    os.close(writer)
    time.sleep(0.5)
    [beside] = [pid for pid in session_of(process.pid) if b"gpu_usage" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    holders = [
        pid
        for pid in (process.pid, beside)
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if str(path.readlink()) == pipe
    ]
    assert holders == [process.pid]
    os.close(reader)
    assert process.wait(300) == 0
