"""If a rank dies or training diverges, all ranks end within seconds, and no bad checkpoint is saved."""

import contextlib
import errno
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from messages import assert_error, assert_names, assert_warning, slugs
from support import (
    DIGITS,
    INSIDE,
    LIMIT,
    ROOT,
    TRAINER,
    digest,
    free_port,
    last_step,
    launch_words,
    output_of,
    started,
    status,
    train,
    training,
    unshared,
    verdict,
)
from trainer.data.make import write_aerial

NO_SHARED_MEMORY = "unable to allocate shared memory"
"""torch's error message."""
LONG = ["--epochs", "100000", "--log-interval", "1", "--no-figures"]


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("launcher", "victim"),
    [
        ("torchrun", 0),
        ("spawn", 1),
        ("horovodrun", 0),
        ("mpirun", 1),
        pytest.param("torchrun", 1, marks=pytest.mark.prove),
        pytest.param("spawn", 0, marks=pytest.mark.prove),
        pytest.param("horovodrun", 1, marks=pytest.mark.prove),
        pytest.param("mpirun", 0, marks=pytest.mark.prove),
    ],
)
def test_killed_rank_ends_all_other_ranks(launcher, victim, tmp_path, table):
    out = tmp_path / "run"
    with training(launcher, 2, out, *LONG) as launch:
        launch.until(lambda: last_step(out) >= 5, "step 5")
        os.kill(launch.rank_pid(victim), signal.SIGKILL)
        start = time.monotonic()
        code = launch.wait()
        seconds = time.monotonic() - start
    assert code != 0, launch.output
    assert verdict(out) == "", "a crash has none"
    if launcher == "spawn":
        assert_warning(launch.output, "rank-killed", f"rank {victim} ", "SIGKILL", "MiB")
    table("a rank killed by SIGKILL", [(launcher, f"rank {victim}", f"exit {code}", f"after {seconds:.1f} s")])


@pytest.mark.parametrize(("launcher", "ranks"), [("single", 1), ("forked", 2)])
def test_diverging_run_fails_and_keeps_last_good_checkpoint(launcher, ranks, tmp_path):
    out = tmp_path / "run"
    good = ["--arch", "mlp", "--optimizer", "sgd", "--schedule", "constant", "--no-figures"]
    train(launcher, ranks, out, *good, "--epochs", "1")
    said = train(launcher, ranks, out, *good, "--lr", "1e30", "--epochs", "3", "--resume", "auto", code=1)
    assert "diverged" in slugs(said)
    assert (status(out)["state"], status(out)["step"]) == ("failed", 23)
    assert verdict(out, 2).startswith("failed 23 diverged: ")
    assert verdict(out, 2).count("\n") == 1
    assert (out / "checkpoints" / "latest").resolve().name == "step_00000023"
    train(launcher, ranks, out, *good, "--epochs", "2", "--resume", "auto")


def test_second_run_in_used_folder_is_refused(tmp_path):
    out = tmp_path / "run"
    with training("single", 1, out, *LONG) as first:
        first.until(lambda: last_step(out) >= 5, "step 5")
        said = train("single", 1, out, *LONG, "--resume", "auto", code=78, TRAINER_ATTEMPT="7")
        assert_error(said, "folder-in-use", out, first.process.pid, socket.gethostname())
        first.process.terminate()
        assert first.wait() == 75
    assert status(out)["reason"] == "signal"  # the second run did not change the first one's folder
    assert f" folder-in-use: {out} " in verdict(out, 7)  # and reported it to the job script


def trained_on(disk, options, *flags, prepare=":", log):
    """Train on a file system mounted with options; return the output, followed by the exit code."""
    disk.mkdir()
    run = shlex.join([*TRAINER, str(DIGITS), "--output-dir", str(disk / "run"), "--no-figures", *flags])
    script = f"mount -t tmpfs -o {options} none {disk}; {prepare}; {run}; echo exit $?; cat {disk}/run/verdict.1 || :"
    return output_of([*unshared("mount"), "sh", "-c", script], log)


def test_full_disk_ends_run_and_keeps_last_checkpoint(tmp_path):
    said = trained_on(tmp_path / "disk", "size=1m", "--epochs", "3", log=tmp_path / "log")
    assert "exit 1\nfailed 23 not-saved: " in said
    assert_error(said, "not-saved", os.strerror(errno.ENOSPC), "step_00000023")


@pytest.mark.parametrize(
    ("options", "fill", "code", "allowed"),
    [
        ("size=1m", True, 78, {"cannot-write"}),
        ("nr_inodes=3", False, 78, {"cannot-write"}),
        ("nr_inodes=22", False, 1, {"not-saved", "disk-full"}),
        ("size=600k", False, 1, {"not-saved"}),
    ],
    ids=["full", "no inodes", "too few inodes", "too small"],
)
def test_disk_too_small_for_checkpoint_gives_one_line_error(tmp_path, options, fill, code, allowed):
    disk = tmp_path / "disk"
    prepare = f"dd if=/dev/zero of={disk}/fill bs=1k 2>/dev/null" if fill else ":"
    said = trained_on(disk, options, "--epochs", "1", prepare=prepare, log=tmp_path / "log")
    before, ended, _ = said.partition(f"exit {code}\n")
    assert ended, said
    last = before.splitlines()[-1]
    assert last.startswith("trainer: error[")
    (slug,) = slugs(last)
    assert slug in allowed
    assert_error(before, slug, os.strerror(errno.ENOSPC))
    assert "step_" not in last  # no checkpoint exists


def test_run_folder_turned_read_only_gives_one_line_error(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    out = disk / "run"
    run = shlex.join([*TRAINER, str(DIGITS), "--output-dir", str(out), *LONG, "--arch", "mlp"])
    wait = f"until grep -qs '\"step\": 50,' {out}/metrics.jsonl; do sleep 0.1; done"
    # Files open for writing block an ordinary remount, so remount as a server or a failing disk would.
    # A save that has started meanwhile also blocks this remount.
    remount = f"until mount -o remount,ro,bind {disk} 2>/dev/null; do sleep 0.01; done"
    script = f"mount -t tmpfs none {disk}; {run} & {wait}; mount --bind {disk} {disk}; {remount}"
    script += "; kill $!; wait $!; echo exit $?"
    said = output_of([*unshared("mount"), "sh", "-c", script], tmp_path / "log")
    *_, last, ended = said.splitlines()
    assert (ended, last.startswith("trainer: error[")) == ("exit 1", True), said
    assert_names(last, "Read-only file system")
    assert "Traceback" not in said


LOOKS_AT_EXIT = """
import os, sys
end = os._exit

def look(code):
    sys.stderr.write(f"group={sys.modules['torch.distributed'].is_initialized()}\\n")
    sys.stderr.flush()
    end(code)

os._exit = look
"""
"""Ranks end with this function."""


def test_process_group_is_destroyed_before_exit(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LOOKS_AT_EXIT)
    flags = ["--arch", "mlp", "--max-steps", "2", "--no-figures"]
    said = train("torchrun", 2, tmp_path / "run", *flags, PYTHONPATH=str(tmp_path))
    assert re.findall(r"group=(\w+)", said) == ["False"] * 2, said


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_forty_short_runs_of_four_ranks_exit_with_0(tmp_path, table):
    """Gloo ranks of torch 2.13 sometimes abort at exit if their group is not destroyed carefully."""
    runs = 40
    for number in range(runs):
        train("torchrun", 4, tmp_path / str(number), "--arch", "mlp", "--epochs", "1", "--no-figures")
    table("short ddp runs of 4 ranks", [(f"{runs} of {runs} with exit code 0",)])


def test_torchrun_restarts_killed_ranks_and_run_resumes(tmp_path, table):
    out = tmp_path / "run"
    words = [*launch_words("torchrun", 2), str(DIGITS), "--output-dir", str(out), *LONG, "--resume", "auto"]
    words.insert(words.index("-m"), "--max-restarts=3")
    rows = []
    with started(words, tmp_path / "log") as launch:
        for kill in range(3):
            step = last_step(out) + 30
            launch.until(lambda: last_step(out) >= step, f"step {step}")  # noqa: B023 -- called at once
            os.kill(launch.rank_pid(kill % 2), signal.SIGKILL)
            rows.append((f"kill {kill + 1}, of rank {kill % 2}", f"at step {last_step(out)}"))
        step = last_step(out) + 30
        launch.until(lambda: last_step(out) >= step, f"step {step}")
        (out / "STOP").write_text("user\n")
        assert launch.wait() == 0, launch.output
    assert status(out)["reason"] == "user"
    assert launch.output.count("resumed at step") == 3
    table("torchrun --max-restarts=3", rows)


def test_ranks_save_and_end_if_torchrun_is_killed(tmp_path, table):
    out = tmp_path / "run"
    with training("torchrun", 2, out, *LONG) as launch:
        launch.until(lambda: last_step(out) >= 5, "step 5")
        os.kill(launch.process.pid, signal.SIGKILL)
        start = time.monotonic()
        launch.all_ended(60)
        seconds = time.monotonic() - start
    ended = status(out)
    assert verdict(out).startswith("stopped ")
    assert (ended["state"], ended["reason"], ended["step"] > 5) == ("stopped", "launcher", True)
    table("torchrun killed by SIGKILL", [(f"its ranks have saved step {ended['step']}", f"after {seconds:.1f} s")])


def test_new_torchrun_replaces_killed_one(tmp_path, table):
    out, port = tmp_path / "run", free_port()
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-id=1", f"--rdzv-endpoint=127.0.0.1:{port}"]

    def agent(number):
        words = [*INSIDE, "torchrun", "--nnodes=2", "--max-restarts=3", "--local-addr=127.0.0.1", *rendezvous]
        words += [f"--rdzv-conf=is_host={number == 1}", "-m", "trainer", str(DIGITS)]
        words += ["--output-dir", str(out), *LONG, "--resume", "auto"]
        # pytorch's issue 135712
        return started(words, tmp_path / f"{number}.log", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    with agent(1) as first, contextlib.ExitStack() as others:
        second = others.enter_context(agent(2))
        first.until(lambda: last_step(out) >= 5, "step 5")
        os.kill(second.process.pid, signal.SIGKILL)
        began = time.monotonic()
        first.until(lambda: status(out).get("reason") == "launcher", "that the ranks stop")
        saved = last_step(out)
        others.enter_context(agent(3))
        first.until(lambda: last_step(out) > saved + 5, "a further step")
        seconds = time.monotonic() - began
        (out / "STOP").write_text("user\n")
        assert first.wait() == 0, first.output
    assert status(out)["reason"] == "user"
    table("one of two torchruns killed, and another started", [(f"trains again after {seconds:.1f} s",)])


HEARS_HANGUP = ["env", "--default-signal=HUP"]
"""Words before a command, in case the tests themselves run under nohup."""


def test_run_under_nohup_ignores_sighup(tmp_path):
    out = tmp_path / "run"
    with started(["nohup", *TRAINER, str(DIGITS), "--output-dir", str(out), *LONG], tmp_path / "log") as launch:
        launch.until(lambda: last_step(out) >= 5, "step 5")
        launch.process.send_signal(signal.SIGHUP)
        step = last_step(out) + 50
        launch.until(lambda: last_step(out) >= step, f"step {step}")
        launch.process.terminate()
        assert launch.wait() == 75
    assert status(out)["reason"] == "signal"


@pytest.mark.parametrize("moment", ["training", "joining"])
def test_run_stops_cleanly_if_terminal_is_closed(tmp_path, moment):
    """The program can no longer print, and must not wait for it."""
    out = tmp_path / "run"
    words = [*HEARS_HANGUP, *TRAINER, str(DIGITS), "--output-dir", str(out), *LONG]
    ranks = {}
    if moment == "joining":
        words += ["--backend", "ddp"]
        ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | ranks, start_new_session=True
    )
    os.close(theirs)
    try:
        deadline = time.monotonic() + LIMIT
        while not (last_step(out) >= 5 if moment == "training" else "libtorch" in maps(process.pid)):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(LIMIT) == 75
    finally:
        process.kill()
        process.wait()
    assert moment == "joining" or status(out)["reason"] == "signal"


def maps(pid):
    """Return the names of the files that the process has mapped."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    return ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signal_ends_rank_that_waits_for_other_ranks(tmp_path, number):
    out = tmp_path / "run"
    port = free_port()
    words = [*TRAINER, str(DIGITS), "--output-dir", str(out), "--backend", "ddp"]
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with started(words, tmp_path / "log", **ranks) as launch:
        launch.until(lambda: listens(port), "rank 0 that listens")
        launch.process.send_signal(number)
        assert launch.wait() == 75
    assert_names(launch.output.splitlines()[-1], "trainer: ", number.name)
    assert not out.exists()


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


RANK_0_OF_HOROVOD = {
    "HOROVOD_RANK": "0",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "600",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_HOSTNAME": "127.0.0.1",
}


@pytest.mark.horovod
@pytest.mark.parametrize("by", ["limit", "signal"])
def test_wait_for_missing_horovod_rank_ends_at_timeout_or_signal(tmp_path, by):
    server = [sys.executable, str(ROOT / "jobscripts" / "lib" / "horovod_server.py"), str(tmp_path / "port")]
    server += ["127.0.0.1", "1", "2"]
    words = [*TRAINER, str(DIGITS), "--output-dir", str(tmp_path / "run"), "--backend", "horovod"]
    words += ["--collective-timeout", "8" if by == "limit" else "600"]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as rendezvous:
        try:
            rendezvous.stdout.readline()
            port = (tmp_path / "port").read_text().split("\0")[1]
            with started(words, tmp_path / "log", **RANK_0_OF_HOROVOD, HOROVOD_GLOO_RENDEZVOUS_PORT=port) as launch:
                if by == "signal":
                    launch.until(lambda: "mpi_lib" in maps(launch.process.pid), "a rank that waits")
                    time.sleep(1)
                    launch.process.terminate()
                assert launch.wait() == (75 if by == "signal" else 1), launch.output
        finally:
            rendezvous.kill()
    last = launch.output.splitlines()[-1]
    if by == "signal":
        assert_names(last, "trainer: ", "SIGTERM")
    else:
        assert_error(last, "cannot-join", "Horovod", "8 s", "--collective-timeout")


@pytest.fixture
def photos(tmp_path):
    """Return flags for training on images that workers decode."""
    write_aerial(tmp_path / "images", per_class=3, image_size=64, seed=0)
    flags = ["--dataset", "imagefolder", "--data-dir", str(tmp_path / "images"), "--arch", "mlp", "--batch-size", "4"]
    return [*flags, "--image-size", "128", "--workers", "1", *LONG]


def test_killed_loader_worker_gives_one_line_error(tmp_path, photos):
    out = tmp_path / "run"
    with training("single", 1, out, *photos) as launch:
        launch.until(lambda: last_step(out) >= 3, "step 3")
        worker = next(pid for pid in launch.pids() if pid != launch.process.pid)
        os.kill(worker, signal.SIGKILL)
        assert launch.wait() == 1
    assert_error(launch.output, "lost-worker", "DataLoader", f" {worker})", "MiB", "--workers")
    assert launch.output.splitlines()[-1].startswith("trainer: error[lost-worker]")


def test_full_dev_shm_gives_one_line_error(tmp_path, photos):
    run = shlex.join([*TRAINER, str(DIGITS), "--output-dir", str(tmp_path / "run"), *photos])
    script = f"mount -t tmpfs -o size=150k none /dev/shm; {run}; echo exit $?"
    said = output_of([*unshared("mount"), "sh", "-c", script], tmp_path / "log")
    *_, last, code = said.splitlines()
    assert code == "exit 1"
    assert_error(last, "lost-worker", "/dev/shm")  # noqa: S108 -- it is named
    assert re.search(r"\b0\.\d\b.* 0\.\d MiB", last)
    assert NO_SHARED_MEMORY in said
    assert "Traceback" not in said


FLIPPING = """
import os

import torch

from trainer.model.small import MLP


def flips(shape, classes):
    model = MLP(shape, classes)
    count = 0

    def flip(*_):
        nonlocal count
        count += 1
        if count == 12 and os.environ["RANK"] == "1":
            next(model.parameters()).data.view(torch.int32).view(-1)[5] ^= 1  # the lowest bit of one weight

    model.register_forward_hook(flip)
    return model
"""


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.prove), 3])
def test_verify_replicas_detects_bit_flip_in_one_replica(tmp_path, ranks, table):
    (tmp_path / "flipping.py").write_text(FLIPPING)
    flags = ["--arch", "flipping:flips", "--epochs", "2", "--no-figures"]
    python_path = {"PYTHONPATH": str(tmp_path)}
    train("spawn", ranks, tmp_path / "unnoticed", *flags, **python_path)
    said = train("spawn", ranks, tmp_path / "run", *flags, "--verify-replicas", "5", code=1, **python_path)
    last = said.splitlines()[-1]
    named = re.findall(rf"rank (\d) \({socket.gethostname()}\)", last)
    assert named == (["1"] if ranks > 2 else ["0", "1"]), last
    assert slugs(last) == ["replicas-differ"]
    assert (status(tmp_path / "run")["state"], status(tmp_path / "run")["step"]) == ("failed", 0)
    table(f"a bit flipped in rank 1 of {ranks}, at step 11", [[last]])


def test_verify_replicas_does_not_change_weights(tmp_path):
    flags = ["--arch", "mnist-cnn", "--epochs", "1", "--ema-decay", "0.9", "--no-figures"]
    train("spawn", 2, tmp_path / "plain", *flags)
    train("spawn", 2, tmp_path / "verified", *flags, "--verify-replicas", "3")
    assert digest(tmp_path / "plain/checkpoints/latest") == digest(tmp_path / "verified/checkpoints/latest")


@pytest.mark.prove
def test_oom_killed_ranks_are_reported_with_cgroup_limit(tmp_path, table):
    """Needs root; uses a new control group, version 1 or 2."""
    top = Path("/sys/fs/cgroup")
    old = (top / "memory").is_dir()
    group = (top / "memory" if old else top) / f"slipway-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(420 << 20))
        flags = ["--nproc-per-node", "2", "--arch", "resnet50", "--epochs", "1", "--no-figures"]
        run = shlex.join([*TRAINER, str(DIGITS), "--output-dir", str(tmp_path / "run"), *flags])
        said = output_of(["sh", "-c", f"echo $$ >{group}/cgroup.procs; {run}; echo exit $?"], tmp_path / "log")
    finally:
        group.rmdir()
    (line,) = [line for line in said.splitlines() if "warning[rank-killed]" in line]
    assert_names(line, "SIGKILL", f" {group.name} ", " 420 MiB")
    assert re.search(r" 4\d\d\b.*;.*\bkilled\b.* \d", line)
    assert said.endswith("exit 137\n")
    table("ranks in a control group of 420 MiB", [[line]])
