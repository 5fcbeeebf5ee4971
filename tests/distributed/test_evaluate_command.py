"""``trainer evaluate`` gives the run's own final results on any number of ranks, and does not change its folder."""

import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from messages import assert_error
from slipway.base.slugs import SLUGS
from support import INSIDE, TRAINER, last_step, launch_words, output_of, status, train, training, unshared

FLAGS = ["--epochs", "2", "--val-fraction", "0.2031", "--val-batch-size", "50", "--no-figures"]
COMMAND = ["-m", "trainer", "evaluate", "--backend"]
RANKS = (1, 2, 3)
TOLERANCE = 1e-6
"""Tolerance of the loss: the order of its sum depends on the number of ranks."""


def evaluate(launcher, ranks, *words, log):
    """Evaluate with a launcher and return the output."""
    start = launch_words(launcher, ranks, program=COMMAND)
    if launcher == "spawn":
        start = [*TRAINER, "evaluate", "--nproc-per-node", str(ranks)]
    return output_of([*start, *map(str, words)], log)


def own(run):
    """Return the numbers and tables of the run's last evaluation."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["kind"] == "validation"][-1]
    return {name: last[name] for name in ("loss", "accuracy", "top5", "step")}, tables(run / "figures")


def found(output):
    """Return the numbers and tables of an evaluation."""
    result = json.loads((output / "evaluation.json").read_text())
    return {name: result[name] for name in ("loss", "accuracy", "top5", "step")}, tables(output)


def tables(folder):
    return {name: (folder / name).read_text() for name in ("confusion.csv", "classes.csv")}


def tree(folder):
    """Return a folder's files with their exact bytes and modification times."""
    return {
        path.relative_to(folder): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


def assert_same(run, output, *, exact):
    (expected, expected_tables), (actual, actual_tables) = own(run), found(output)
    assert actual_tables == expected_tables
    assert {**actual, "loss": 0} == {**expected, "loss": 0}
    assert actual["loss"] == (expected["loss"] if exact else pytest.approx(expected["loss"], abs=TOLERANCE))
    return abs(actual["loss"] - expected["loss"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return, for each number of ranks, a run with an average of its weights."""
    folder = tmp_path_factory.mktemp("runs")
    for ranks in RANKS:
        train("forked", ranks, folder / str(ranks), *FLAGS, "--ema-decay", "0.9")
    return {ranks: folder / str(ranks) for ranks in RANKS}


@pytest.mark.parametrize(
    "way",  # training ranks, evaluating ranks, launcher
    [
        *((1, 1, "single"), (2, 2, "forked"), (3, 3, "forked")),
        (3, 1, "single"),
        *(pytest.param((trained, ranks, "spawn"), marks=pytest.mark.prove) for trained, ranks in ((3, 2), (1, 3))),
        pytest.param((2, 2, "horovodrun"), marks=pytest.mark.horovod),
    ],
    ids=lambda way: "{}-{}-{}".format(*way),
)
def test_evaluate_reproduces_results_of_run_on_any_ranks(runs, way, tmp_path, table):
    trained, ranks, launcher = way
    run = runs[trained]
    before = tree(run)
    said = evaluate(launcher, ranks, run, "--output", tmp_path / "out", log=tmp_path / "log")
    difference = assert_same(run, tmp_path / "out", exact=ranks == trained and launcher != "horovodrun")
    assert tree(run) == before
    assert "(average " in said
    assert said.count("validation loss ") == 1  # only rank 0 prints
    result = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert (result["ranks"], result["samples"]) == (ranks, 365)
    table(
        f"trained on {trained} rank(s), evaluated on {ranks} by {launcher}",
        [("counts and confusion matrix", "equal"), ("loss differs by", f"{difference:.1e}")],
    )


def test_evaluate_best_checkpoint_and_unaveraged_weights(runs, tmp_path):
    for name, words in {"best": ["--best"], "weights": ["--no-average"], "again": []}.items():
        evaluate("single", 1, runs[1], *words, "--output", tmp_path / name, log=tmp_path / "log")
    best = (runs[1] / "checkpoints" / "best").resolve().name
    assert json.loads((tmp_path / "best" / "evaluation.json").read_text())["checkpoint"].endswith(best)
    assert found(tmp_path / "weights")[0]["loss"] != found(tmp_path / "again")[0]["loss"]


def test_model_split_into_stages_is_evaluated_as_whole(tmp_path):
    run = tmp_path / "run"
    train("single", 1, run, "--no-figures", "--split", "conv2", "--grad-accum-steps", "4", "--epochs", "1")
    evaluate("single", 1, run, "--output", tmp_path / "out", log=tmp_path / "log")
    assert_same(run, tmp_path / "out", exact=False)


def test_evaluate_read_only_run_folder(runs, tmp_path):
    if INSIDE:
        pytest.skip("a mount namespace outside of the image")
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && ! touch "$1/x" 2>/dev/null && shift && "$@"'
    words = [*unshared("mount"), "sh", "-c", script, "sh", str(runs[1])]
    words += [*TRAINER, "evaluate", str(runs[1]), "--output", str(tmp_path / "out")]
    output_of(words, tmp_path / "log")
    assert_same(runs[1], tmp_path / "out", exact=True)


def test_run_continues_training_while_it_is_evaluated(tmp_path):
    run = tmp_path / "run"
    flags = ["--epochs", "10000", "--checkpoint-interval", "5", "--keep", "1", "--no-figures"]
    with training("single", 1, run, *flags) as launch:
        launch.until((run / "checkpoints" / "best").exists, "checkpoint")
        lock = json.loads((run / "lock").read_text())
        for number in range(3):
            before = last_step(run)
            evaluate("single", 1, run, "--output", tmp_path / str(number), log=tmp_path / "evaluation.log")
            assert found(tmp_path / str(number))[0]["step"] >= before - 30, "a checkpoint of just now"
            launch.until(lambda before=before: last_step(run) > before, "progress")
        assert json.loads((run / "lock").read_text()) == lock
        (run / "STOP").write_text("user\n")
        assert launch.wait() == 75
    assert status(run)["state"] == "stopped"


def test_copied_checkpoint_is_evaluated_with_given_config(runs, tmp_path):
    copy = shutil.copytree(runs[1] / "checkpoints" / "latest", tmp_path / "copy")
    words = [copy, "--config", runs[1] / "config.toml", "--output", tmp_path / "out"]
    evaluate("single", 1, *words, log=tmp_path / "log")
    assert_same(runs[1], tmp_path / "out", exact=True)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a run on a folder of images, and the folder."""
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for data, names in {"data": ("ant", "bee"), "other": ("ant", "cat"), "more": ("ant", "bee", "cat")}.items():
        for name in [f"{part}/{kind}" for part in ("train", "val") for kind in names]:
            (folder / data / name).mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / data / name / f"{number}.png")
    flags = ["--dataset", "imagefolder", "--data-dir", str(folder / "data"), "--image-size", "8", "--arch", "mlp"]
    train("single", 1, folder / "run", *flags, "--epochs", "1", "--no-figures", "--workers", "0")
    return folder


def test_evaluate_with_moved_data_folder(photos, tmp_path):
    shutil.copytree(photos / "data", tmp_path / "moved")
    words = [photos / "run", "--data-dir", tmp_path / "moved", "--workers", "1", "--output", tmp_path / "out"]
    evaluate("spawn", 2, *words, log=tmp_path / "log")
    assert_same(photos / "run", tmp_path / "out", exact=False)


BAD = {
    "not a run": (["data"], "not-a-run", ["/data ", "checkpoints/", "manifest.json"]),
    "no data": (["run", "--data-dir", "nowhere"], "no-data", ["nowhere"]),
    "other classes": (["run", "--data-dir", "other"], "different-data", ["class 1 ", "'bee'", "'cat'"]),
    "output in the run folder": (["run", "--output", "run/evaluated"], "folder-in-use", ["--output", "run/evaluated"]),
    "output that is not empty": (["run", "--output", "data"], "file-exists", ["--output", "/data "]),
    "ranks of another backend": (
        ["run", "--nproc-per-node", "2", "--backend", "single"],
        "conflicting-settings",
        ["--nproc-per-node", "single"],
    ),
    "damaged, on two ranks": (["damaged", "--nproc-per-node", "2"], "damaged-checkpoint", ["/damaged "]),
}


@pytest.fixture(scope="module")
def bad(photos):
    """Return the folder of ``photos`` with a damaged copy of the run."""
    shutil.copytree(photos / "run", photos / "damaged", symlinks=True)
    (photos / "damaged" / "checkpoints" / "latest" / "model.safetensors").write_bytes(b"bad")
    return photos


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_one_line_error_and_leaves_run_unchanged(bad, case, tmp_path, table):
    words, slug, values = BAD[case]
    before = tree(bad / "run")
    words = [str(bad / word) if os.path.lexists(bad / word.partition("/")[0]) else word for word in words]
    assert SLUGS[slug].exit_code == 78
    said = output_of([*TRAINER, "evaluate", *words], tmp_path / "log", code=78)
    (line,) = [line for line in said.splitlines() if line.startswith("trainer:")]
    assert_error(said, slug, *values)
    assert tree(bad / "run") == before
    table(f"bad input: {case}", [("exit 78", line.replace(f"{bad}/", ""))])
