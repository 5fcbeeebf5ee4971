"""When a rank dies or training diverges, all end within seconds, and no bad checkpoint comes of it."""

import os
import shlex
import signal
import time

import pytest

from support import DIGITS, TRAINER, last_step, launch_words, started, status, train, unshared, verdict

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
def test_a_dead_rank_ends_the_others_within_seconds(launcher, victim, tmp_path, table):
    out = tmp_path / "run"
    words = [*launch_words(launcher, 2), str(DIGITS), "--output-dir", str(out), *LONG]
    with started(words, tmp_path / "log") as launch:
        launch.until(lambda: last_step(out) >= 5, "step 5")
        os.kill(launch.rank_pid(victim), signal.SIGKILL)
        start = time.monotonic()
        code = launch.wait(60)
        seconds = time.monotonic() - start
    assert code != 0, launch.output
    assert verdict(out) == "", "a crash has none"
    table("a rank killed by SIGKILL", [(launcher, f"rank {victim}", f"exit {code}", f"after {seconds:.1f} s")])


@pytest.mark.parametrize(("launcher", "ranks"), [("single", 1), ("torchrun", 2)])
def test_a_diverging_run_stops_and_keeps_the_last_good_checkpoint(launcher, ranks, tmp_path):
    out = tmp_path / "run"
    good = ["--arch", "mlp", "--optimizer", "sgd", "--schedule", "constant", "--no-figures"]
    train(launcher, ranks, out, *good, "--epochs", "1")
    said = train(launcher, ranks, out, *good, "--lr", "1e30", "--epochs", "3", "--resume", "auto", code=1)
    assert "training diverged" in said
    assert (status(out)["state"], status(out)["step"]) == ("failed", 23)
    assert verdict(out, 2).startswith("failed 23 ")
    assert verdict(out, 2).count("\n") == 1
    assert (out / "checkpoints" / "latest").resolve().name == "step_00000023"
    train(launcher, ranks, out, *good, "--epochs", "2", "--resume", "auto")


def test_two_runs_never_share_a_folder(tmp_path):
    out = tmp_path / "run"
    words = [*launch_words("single", 1), str(DIGITS), "--output-dir", str(out), *LONG]
    with started(words, tmp_path / "log") as first:
        first.until(lambda: last_step(out) >= 5, "step 5")
        said = train("single", 1, out, *LONG, "--resume", "auto", code=78, TRAINER_ATTEMPT="7")
        assert f"is in use by process {first.process.pid} on " in said
        first.process.terminate()
        assert first.wait() == 75
    assert status(out)["reason"] == "signal", "the second run left the first one's folder alone"
    assert f" {out} is in use by process " in verdict(out, 7), "and said so to the job script"


def test_a_full_disk_ends_the_run_with_the_last_checkpoint_that_fits(tmp_path):
    out = tmp_path / "disk" / "run"
    out.parent.mkdir()
    run = shlex.join([*TRAINER, str(DIGITS), "--output-dir", str(out), "--epochs", "3", "--no-figures"])
    script = f"mount -t tmpfs -o size=1m none {out.parent}; {run}; echo exit $?; cat {out}/verdict.1"
    with started([*unshared("mount"), "sh", "-c", script], tmp_path / "log") as launch:
        assert launch.wait() == 0, launch.output
    assert "exit 1\nfailed 23 the last checkpoint could not be written: " in launch.output
    assert "No space left on device" in launch.output


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_short_runs_of_four_ranks_end_with_0_each_time(tmp_path, table):
    """Gloo ranks of torch 2.13 now and then abort at exit, if their group is not taken down with care."""
    runs = 40
    for number in range(runs):
        train("torchrun", 4, tmp_path / str(number), "--arch", "mlp", "--epochs", "1", "--no-figures")
    table("short ddp runs of 4 ranks", [(f"{runs} of {runs} with exit code 0",)])
