"""The files of a run, tested from outside: with the command line, the files and the exit codes."""

import json
import os
import re
import shutil
import tomllib

import pytest

from messages import assert_error, assert_names, messages, slugs
from support import DIGITS, TRAINER, digest, last_step, started, train, training, unshared, verdict

SHORT = ["--arch", "mlp", "--epochs", "2", "--no-figures"]


def snapshot(folder):
    """Return the bytes of all files below ``folder``, by name."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a run that finished at step 46."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train("single", 1, out, *SHORT)
    return out


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


OPENS = """
import os, sys
def record(event, args):
    if event in {"open", "os.mkdir", "os.rename"} and "/checkpoints/" in str(args[0]) and "RANK" in os.environ:
        with open(os.environ["SEEN"] + os.environ["RANK"], "a") as file:
            print(event, *args, file=file)
sys.addaudithook(record)
"""


def test_only_rank_0_opens_files_of_checkpoints(tmp_path):
    out, seen = tmp_path / "run", tmp_path / "seen"
    (tmp_path / "sitecustomize.py").write_text(OPENS)
    train("spawn", 2, out, *SHORT, imports=True, PYTHONPATH=str(tmp_path), SEEN=str(seen))
    assert (out / "checkpoints" / "latest").exists()
    assert [path.name for path in tmp_path.glob("seen?")] == ["seen0"]


def test_run_files_follow_trainer_umask_instead_of_process_umask(tmp_path):
    out = tmp_path / "run"
    out.mkdir(mode=0o750)
    before = os.umask(0o002)  # as of a shell on another node
    try:
        train("forked", 2, out, *SHORT, "--max-steps", "3", "--tensorboard", TRAINER_UMASK="027")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in out.rglob("*") if not path.is_symlink()}
    assert modes == {0o750, 0o640}


class TestDryRun:
    @pytest.mark.parametrize(("launcher", "ranks"), [("single", 1), ("spawn", 2)])
    def test_dry_run_leaves_no_files(self, launcher, ranks, tmp_path):
        folder = tmp_path / "below"
        folder.mkdir()
        said = train(launcher, ranks, folder / "run", *SHORT, "--record-samples", "--dry-run", config=DIGITS)
        assert "dry run: " in said
        assert [path.name for path in folder.iterdir() if path.suffix != ".log"] == []
        (folder / "run").mkdir()
        train(launcher, ranks, folder / "run", *SHORT, "--dry-run")
        assert list((folder / "run").iterdir()) == []

    def test_dry_run_resumes_for_one_step_and_leaves_run_unchanged(self, copied):
        before = snapshot(copied)
        said = train("single", 1, copied, *SHORT, "--epochs", "9", "--dry-run", "--resume", "auto", TRAINER_ATTEMPT="2")
        assert re.search(r"\bresumed\b.* 46\b.* 3\n", said)
        assert "step 47  validation loss" in said
        after = snapshot(copied)
        assert after.pop("verdict.2") == b"done 47 complete\n"
        assert after == before

    def test_dry_run_is_refused_like_real_run(self, copied, tmp_path):
        before = snapshot(copied)
        assert_error(train("single", 1, copied, *SHORT, "--dry-run", code=78), "folder-holds-run", copied)
        said = train("single", 1, copied, "--dry-run", "--resume", "auto", code=78, TRAINER_ATTEMPT="3")
        assert_error(said, "different-run", "model.arch ", "'mlp'", "'mnist-cnn'")
        after = snapshot(copied)
        assert after.pop("verdict.3").startswith(b"failed 46 different-run: ")
        assert after == before
        assert [path.name for path in tmp_path.iterdir() if "dry-run" in path.name] == []


def test_saved_configuration_reproduces_weights(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    train("spawn", 2, first, "--batch-size-per-rank", "32", "--arch", "mlp", "--epochs", "1", "--no-figures")
    assert tomllib.loads((first / "config.toml").read_text()).keys() == {"data", "model", "optim", "train", "run"}
    launch = json.loads((first / "run.json").read_text())["launch"]
    assert (launch["backend"], launch["device"], launch["threads"]) == ("ddp", "cpu", 1)
    assert json.loads((first / "checkpoints" / "latest" / "manifest.json").read_text())["facts"]["backend"] == "ddp"
    train("forked", 2, second, config=first / "config.toml")
    assert digest(second / "checkpoints" / "latest") == digest(first / "checkpoints" / "latest")


def test_temporarily_full_disk_loses_checkpoints_but_no_metrics(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    out = disk / "run"
    flags = ["--output-dir", str(out), "--epochs", "30", "--no-figures"]
    flags += ["--log-interval", "1", "--checkpoint-interval", "5"]
    script = f"""
        mount -t tmpfs -o size=8m none {disk}
        "$@" & trainer=$!
        until grep -q '"step": 30,' {out}/metrics.jsonl; do kill -0 $trainer || exit; sleep 0.1; done
        until [ -e {tmp_path}/room ]; do  # repeatedly: a failed checkpoint frees its space
            kill -0 $trainer || exit
            cat /dev/zero >>{disk}/filler
            sleep 0.1
        done
        rm {disk}/filler
        wait $trainer; echo exit $?
        cp -r {out} {tmp_path}/kept
    """
    words = [*unshared("mount"), "sh", "-c", script, "sh", *TRAINER, str(DIGITS), *flags]
    with started(words, tmp_path / "log") as launch:
        full = {"checkpoint-not-written", "cannot-append"}
        launch.until(lambda: full <= set(slugs(launch.output)), "a full disk")
        (tmp_path / "room").touch()
        assert launch.wait() == 0
    assert "exit 0" in launch.output
    last = [message.text for message in messages(launch.output) if message.slug == "cannot-append"][-1]
    assert_names(last, "metrics.jsonl", "complete")
    records = [json.loads(line) for line in (tmp_path / "kept" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "train"] == list(range(1, 30 * 23 + 1))
    assert verdict(tmp_path / "kept") == f"done {30 * 23} complete\n"
    assert last_step(tmp_path / "kept") == 30 * 23


KEEPS_A_POOL = """
from concurrent.futures import ThreadPoolExecutor

from trainer.data.sets.digits import digits

POOL = ThreadPoolExecutor(1)


def data(config):
    POOL.submit(int).result()
    return digits(config)
"""
"""A data set whose module leaves a non-daemon thread, like libraries for object stores."""


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--lr", "1e30"), 1)])
def test_ranks_exit_while_library_keeps_non_daemon_thread(tmp_path, flags, code):
    (tmp_path / "pooled.py").write_text(KEEPS_A_POOL)
    words = [*SHORT, "--dataset", "pooled:data", "--optimizer", "sgd", *flags]
    train("spawn", 2, tmp_path / "run", *words, code=code, PYTHONPATH=str(tmp_path))


def test_run_stopped_after_last_step_is_evaluated_on_resume(tmp_path):
    out = tmp_path / "run"
    with training("single", 1, out, *SHORT, "--max-steps", "5") as launch:
        launch.until((out / "lock").exists, "its folder")
        (out / "STOP").write_text("user\n")
        assert launch.wait() == 75, launch.output
    step = last_step(out)
    train("single", 1, out, *SHORT, "--max-steps", str(step), "--resume", "auto")
    kinds = [json.loads(line)["kind"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert kinds[-1] == "validation"
    assert (out / "checkpoints" / "best").exists()
    again = len(kinds)
    train("single", 1, out, *SHORT, "--max-steps", str(step), "--resume", "auto")
    assert len((out / "metrics.jsonl").read_text().splitlines()) == again
