"""jobgen study: the points of a grid, their submission and their status."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from jobgen.batch.study.grid import Axes, points_of, weak_scaling_batch
from jobgen.batch.study.record import Study
from jobgen.cli import main
from messages import assert_error, assert_names, numbers

ROOT = Path(__file__).resolve().parents[2]


def study(capsys, *words, spec="ddp", code=0, ranks="1,2,4", cpus="1,2"):
    given = ["study", spec, "--site", "example", "--output", "study", "--ranks", ranks, "--cpus", cpus, *words]
    assert main(given) == code
    return capsys.readouterr()


def refuses(capsys, slug, *values, words=(), code=78, **given):
    """Hold that it ends with this error."""
    assert_error(study(capsys, *words, code=code, **given).err, slug, *values)


def to_submit(text):
    """Return how many points are submitted, and of how many."""
    return re.findall(r"(?m)^(\d+) of (\d+) ", text)


def environment_of(login_node, number):
    lines = (login_node / f"{number}.environment").read_text().splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def arguments_of(login_node, number):
    return (login_node / f"{number}.arguments").read_text().splitlines()[2:]


def make_environment():
    Path(".venv", "bin").mkdir(parents=True)
    Path(".venv", "bin", "python").touch()


def test_grid_uses_fewest_nodes_that_fit_ranks():
    axes = Axes(ranks=[1, 2, 3, 4], cpus=[2], nodes=[], backends=[], containers=[])
    points, remarks = points_of(axes, max_ranks_per_node=2)
    assert [(point.name, point.ranks_per_node) for point in points] == [
        ("nodes1-ranks1-cpus2", 1),
        ("nodes1-ranks2-cpus2", 2),
        ("nodes3-ranks3-cpus2", 1),
        ("nodes2-ranks4-cpus2", 2),
    ]
    assert [numbers(remark) for remark in remarks] == [[3, 3, 1, 2]]  # 3 ranks on 3 nodes, 1 on each, though 2 fit
    points, remarks = points_of(axes._replace(ranks=[3], nodes=[3]), max_ranks_per_node=2)
    assert (len(points), remarks) == (1, [])  # as requested


def test_impossible_points_are_reported():
    axes = Axes(ranks=[1, 3, 8], cpus=[1, 2], nodes=[2], backends=["ddp"], containers=["0", "1"])
    points, remarks = points_of(axes, max_ranks_per_node=2)
    assert points == []
    assert [numbers(remark) for remark in remarks] == [[1, 2], [3, 2], [8, 2, 2]]  # a node takes 2


def test_point_names_include_varied_backend_and_container():
    axes = Axes(ranks=[2], cpus=[1], nodes=[], backends=["ddp", "horovod"], containers=["0", "1"])
    points, _ = points_of(axes, max_ranks_per_node=2)
    assert [point.name for point in points] == [
        "nodes1-ranks2-cpus1-ddp-venv",
        "nodes1-ranks2-cpus1-ddp-image",
        "nodes1-ranks2-cpus1-horovod-venv",
        "nodes1-ranks2-cpus1-horovod-image",
    ]


def test_dry_run_prints_points_and_cost_and_writes_nothing(login_node, capsys):
    said = study(capsys, "--dry-run", "--set", "minutes=30").out.splitlines()
    assert len(said) == 1 + 6 + 1
    # nodes x ranks a node x cores x half an hour: 1*1*1 + 1*1*2 + 1*2*1 + 1*2*2 + 2*2*1 + 2*2*2 = 21; GPUs: 2 * (1+2+4)
    assert to_submit(said[-1]) == [("6", "6")]
    assert re.findall(r"([\d.]+) (\w+)-hours", said[-1]) == [("10.5", "core"), ("7.0", "GPU")]
    assert not Path("study").exists()
    assert (login_node / "number").read_text() == "100"


def test_each_point_is_submitted_with_allocation_and_run_folder(login_node, capsys):
    said = study(capsys, "--steps", "50", "--", "--epochs", "3").out
    assert "nodes2-ranks4-cpus2: job 106" in said
    entry = json.loads(Path("study", "study.json").read_text())["points"][5]
    assert (entry["name"], entry["job"], entry["gpus"], entry["ranks"]) == ("nodes2-ranks4-cpus2", "106", 4, 4)
    script = (login_node / "106.script").read_text()
    assert_names(script, "#SBATCH --nodes=2 ", "#SBATCH --gpus-per-node=2 ", "#SBATCH --cpus-per-task=4 ")
    run = environment_of(login_node, 106)["SLIPWAY_RUN_DIR"]
    assert run == str(Path("study", "nodes2-ranks4-cpus2").absolute())
    given = ["--epochs", "3", "--threads", "2", "--workers", "2", "--max-steps", "50"]
    assert arguments_of(login_node, 106) == given
    assert "#SBATCH --gpus-per-node=1 " in (login_node / "101.script").read_text()


def test_backend_and_container_are_set_per_point(login_node, capsys):
    make_environment()
    study(capsys, "--backend", "ddp,horovod", "--container", "0,1", ranks="1", cpus="1")
    found = [environment_of(login_node, number) for number in (101, 102, 103, 104)]
    assert [(one["BACKEND"], one["USE_CONTAINER"]) for one in found] == [
        ("ddp", "0"),
        ("ddp", "1"),
        ("horovod", "0"),
        ("horovod", "1"),
    ]


# regression: study.json recorded container although the environment had switched it off
def test_backend_and_container_from_environment_apply_to_all_points(login_node, capsys, monkeypatch):
    make_environment()
    monkeypatch.setenv("USE_CONTAINER", "0")
    monkeypatch.setenv("BACKEND", "horovod")
    study(capsys, ranks="1", cpus="1")
    (entry,) = Study.read(Path("study")).entries.values()
    assert (entry.backend, entry.container) == ("horovod", False)
    assert environment_of(login_node, 101)["BACKEND"] == "horovod"


def test_weak_scaling_study_sets_constant_batch_size_per_rank(login_node, capsys):
    study(capsys, "--scaling", "weak", ranks="1,2", cpus="1")
    assert arguments_of(login_node, 102)[-2:] == ["--batch-size-per-rank", "64"]
    study(capsys, "--scaling", "weak", ranks="4", cpus="1")
    refuses(capsys, "different-study", "study ", "weak", "slurm", "--output")


@pytest.mark.parametrize(("train", "expected"), [({}, 64), ({"batch_size": 32}, 32), ({"batch_size_per_rank": 8}, 8)])
def test_weak_scaling_batch_is_read_from_config(train, expected):
    schema = json.loads((ROOT / "configs" / "schema.json").read_text())
    assert weak_scaling_batch({"train": train}, schema) == expected


@pytest.mark.parametrize("words", [(), ("--batch", "16")])
def test_weak_scaling_study_without_clone_uses_packaged_config(login_node, capsys, words):
    Path("configs").unlink()
    study(capsys, "--scaling", "weak", *words, ranks="1", cpus="1")
    assert arguments_of(login_node, 101)[-1] == ("16" if words else "64")


def test_user_script_gets_no_trainer_flags(login_node, capsys, monkeypatch):
    Path("mine.py").touch()
    monkeypatch.setenv("SLIPWAY_SCRIPT", "mine.py")
    study(capsys, "--", "--my-flag", ranks="1", cpus="2")
    assert arguments_of(login_node, 101) == ["--my-flag"]


def finish(name, number, *, verdict):
    """Leave the files of a finished job ``number`` for point ``name``."""
    logs = Path("study", name, "logs", "1")
    logs.mkdir(parents=True)
    (logs / "job").write_text(f"slurm {number}\n")
    (logs / "code").write_text("0\n")
    Path("study", name, "verdict.1").write_text(verdict)


def job_state(login_node, number, state):
    (login_node / f"{number}.state").write_text(
        f"JobId={number} JobState={state} Reason=Resources RunTime=00:00:05 TimeLimit=01:00:00 NodeList=node1\n"
    )


def test_repeated_study_submits_only_missing_and_failed_points(login_node, capsys):
    study(capsys, cpus="1")
    finish("nodes1-ranks1-cpus1", 101, verdict="done 230 -\n")
    finish("nodes1-ranks2-cpus1", 102, verdict="failed 10 diverged: the loss\n")
    job_state(login_node, 103, "PENDING")
    said = study(capsys, ranks="1,2,4,8", cpus="1").out
    states = {line.split()[0]: line.split()[1] for line in said.splitlines() if line.startswith("nodes")}
    assert states.items() >= {
        ("nodes1-ranks1-cpus1", "done"),
        ("nodes1-ranks2-cpus1", "failed"),
        ("nodes2-ranks4-cpus1", "waiting"),
    }
    assert to_submit(said) == [("2", "4")]
    jobs = {name: entry.job for name, entry in Study.read(Path("study")).entries.items()}
    assert jobs == {
        "nodes1-ranks1-cpus1": "101",
        "nodes1-ranks2-cpus1": "104",
        "nodes2-ranks4-cpus1": "103",
        "nodes4-ranks8-cpus1": "105",
    }


def test_rejected_point_is_reported_and_submitted_on_next_call(login_node, capsys, monkeypatch):
    monkeypatch.setenv("REFUSED", "102")
    refuses(capsys, "submission-refused", "nodes1-ranks2-cpus1", cpus="1")
    assert [entry.job for entry in Study.read(Path("study")).entries.values()] == ["101", None, "103"]
    job_state(login_node, 101, "PENDING")
    job_state(login_node, 103, "PENDING")
    study(capsys, cpus="1")
    assert [entry.job for entry in Study.read(Path("study")).entries.values()] == ["101", "104", "103"]


@pytest.mark.usefixtures("login_node")
def test_status_shows_state_and_queue_wait_of_points(capsys):
    study(capsys, ranks="1,2", cpus="1")
    finish("nodes1-ranks1-cpus1", 101, verdict="done 230 -\n")
    later = time.time() + 90
    os.utime(Path("study", "nodes1-ranks1-cpus1", "logs", "1", "job"), (later, later))
    assert main(["status", "study"]) == 0
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith("nodes")]
    assert first.split()[:2] == ["nodes1-ranks1-cpus1", "done"]
    assert 88 <= int(first.split()[2]) <= 91
    assert "attempt 1 done, step 230" in first
    assert second.split()[1] == "failed"
    assert "job 102 " in second
    assert main(["status", "study", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["path"].rpartition("/")[2] for run in found] == ["nodes1-ranks1-cpus1", "nodes1-ranks2-cpus1"]
    assert [(run["state"], run["attempt"], run["step"]) for run in found] == [("done", 1, 230), ("failed", 0, 0)]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--ranks", "0"], ["--ranks", "'0'", " 1 ", " 999999"]),
        (["--ranks", "1,x"], ["--ranks", "'x'"]),
        (["--cpus", ""], ["--cpus", "''"]),
        (["--limit", "nan"], ["--limit", "'nan'"]),  # regression: did not ask for confirmation, whatever the cost
        (["--limit", "-1"], ["--limit", "'-1'"]),
    ],
)
@pytest.mark.usefixtures("login_node")
def test_invalid_numbers_in_options_are_refused(capsys, words, values):
    with pytest.raises(SystemExit) as caught:
        main(["study", "ddp", "--site", "example", "--output", "study", "--ranks", "1", "--cpus", "1", *words])
    assert caught.value.code == 2
    assert_error(capsys.readouterr().err, "bad-arguments", *values)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--batch", "8"], ["--batch ", "--scaling"]),  # regression: no effect
        (["--", "--threads", "3"], ["launch.threads ", "--cpus"]),
        (["--steps", "5", "--", "--max-steps=3"], ["train.max_steps ", "--steps"]),
        (["--scaling", "weak", "--", "--batch-size", "8"], ["train.batch_size ", "--scaling"]),
        (["--scaling", "weak", "--", "--batch_size=8"], ["train.batch_size ", "--scaling"]),
        (["--", "--batch-size-per-rank", "8"], ["train.batch_size_per_rank ", "--scaling"]),
    ],
)
@pytest.mark.usefixtures("login_node")
def test_flags_that_study_sets_are_refused(capsys, words, values):
    refuses(capsys, "flag-conflict", *values, words=words, code=2)
    assert not Path("study").exists()


# regression: the points of a strong-scaling study had different global batch sizes
def test_config_with_batch_size_per_rank_requires_weak_scaling(login_node, capsys, monkeypatch):
    Path("mine.toml").write_text("[train]\nbatch_size_per_rank = 8\n")
    monkeypatch.setenv("SLIPWAY_CONFIG", "mine.toml")
    refuses(capsys, "flag-conflict", "train.batch_size_per_rank ", "--scaling", code=2)
    study(capsys, "--scaling", "weak", ranks="1,2", cpus="1")
    assert arguments_of(login_node, 102)[-2:] == ["--batch-size-per-rank", "8"]
    Path("mine.toml").write_text("train = 1\n")
    refuses(capsys, "bad-value", "mine.toml", "train", words=["--output", "other"])
    Path("mine.toml").write_text("train =\n")
    refuses(capsys, "bad-toml", "mine.toml", " line 1", words=["--output", "other"])


# regression: at a site that requests GPUs by its own option, each point trained on all GPUs of a node
def test_ranks_per_node_of_point_overrides_environment(login_node, capsys, monkeypatch):
    monkeypatch.setenv("SLIPWAY_RANKS_PER_NODE", "7")
    study(capsys, ranks="1,4", cpus="1")
    assert [environment_of(login_node, number)["SLIPWAY_RANKS_PER_NODE"] for number in (101, 102)] == ["1", "2"]


# regression: the points before it had been submitted
def test_point_that_cannot_start_is_refused_before_any_submission(login_node, capsys):
    refuses(capsys, "no-environment", "SLIPWAY_VENV: .venv/bin/python ", words=["--container", "1,0"])
    assert not Path("study").exists()
    assert not [*login_node.glob("*.script")]
