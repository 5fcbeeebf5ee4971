"""The configurations of well-known experiments, each trained from the command line."""

import csv
import json
import re
import tomllib

import pytest
import torch

from messages import assert_names
from mnist_files import write_mnist
from support import ROOT, TRAINER, output_of, train, weights
from trainer.config.settings import ModelConfig
from trainer.model import build_model
from trainer.parallel.device import cuts_of
from trainer.parallel.stages.cut import cut

CONFIGS = ROOT / "configs"


@pytest.fixture(scope="module")
def aerial(tmp_path_factory):
    """Return a folder written by make-data, with 42 training images and 21 validation images."""
    folder = tmp_path_factory.mktemp("data") / "aerial"
    words = [*TRAINER, "make-data", "aerial", str(folder), "--per-class", "3"]
    output_of(words, folder.with_name("log"))
    return folder


def records(run, kind):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in found if record["kind"] == kind]


def test_aerial_config_trains_resnet101_and_writes_confusion_matrix(tmp_path, aerial):
    run = tmp_path / "run"
    said = train("spawn", 2, run, "--data-dir", str(aerial), "--epochs", "1", config=CONFIGS / "aerial.toml")
    assert "resnet101 on imagefolder, 42 training and 21 validation samples, 8 per step" in said
    assert_names(said, f" {run}/figures/confusion.csv, ", "confusion.png")
    assert said.endswith(f"run folder: {run}\n")
    assert weights(run / "checkpoints" / "step_00000006")["fc.weight"].shape == (21, 2048)
    rows = list(csv.reader((run / "figures" / "confusion.csv").open()))
    assert [row[0] for row in rows[1:-1]] == sorted(folder.name for folder in aerial.iterdir())
    assert [row[-1] for row in rows[1:]] == ["1"] * 21 + ["21"]
    assert (run / "figures" / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_aerial_config_keeps_each_epoch_and_evaluate_agrees(tmp_path, aerial):
    run = tmp_path / "run"
    flags = ["--data-dir", str(aerial), "--arch", "mlp", "--no-figures"]
    said = train("spawn", 2, run, *flags, config=CONFIGS / "aerial.toml")
    assert f" {run}/figures/confusion.csv\n" in said  # and no figure
    kept = sorted(path.name for path in (run / "checkpoints").glob("step_*"))
    assert kept == [f"step_{epoch * 6:08}" for epoch in range(1, 6)]
    out = tmp_path / "evaluated"
    said = output_of([*TRAINER, "evaluate", str(run), "--output", str(out)], tmp_path / "evaluate.log")
    assert f" {out}/confusion.csv\n" in said
    assert (out / "confusion.csv").read_text() == (run / "figures" / "confusion.csv").read_text()


def test_mnist_config_trains_with_step_schedule(tmp_path):
    write_mnist(tmp_path / "data", train=250, test=50)
    run = tmp_path / "run"
    flags = ["--data-dir", str(tmp_path / "data"), "--log-interval", "2"]
    said = train("spawn", 2, run, *flags, config=CONFIGS / "mnist-tutorial.toml")
    assert "mnist-cnn on mnist, 250 training and 50 validation samples, 128 per step" in said
    rates = [record["lr"] for record in records(run, "train")]
    assert rates == pytest.approx([0.7**epoch for epoch in range(14)]), "two steps an epoch"
    assert records(run, "validation")[-1]["accuracy"] == 1


def test_cpu_config_uses_omp_num_threads_of_job(tmp_path):
    said = train("single", 1, tmp_path / "run", "--epochs", "8", config=CONFIGS / "cpu.toml", OMP_NUM_THREADS="2")
    assert re.search(r"(?m)^2 CPU threads.*\bOMP_NUM_THREADS", said)
    assert "1 rank(s) on cpu" in said
    assert records(tmp_path / "run", "validation")[-1]["accuracy"] > 0.9


def test_split_efficientnet_config_cuts_model_after_fourth_block():
    model = tomllib.loads((CONFIGS / "split-efficientnet.toml").read_text())["model"]
    whole = build_model(ModelConfig(**model), shape=(3, 64, 64), classes=10).eval()
    first, second = stages = cut(whole, cuts_of(model["split"]))
    parts = [{re.match(r"features\.\d|\w+", name)[0] for name, _ in stage.named_parameters()} for stage in stages]
    assert parts == [{f"features.{n}" for n in range(4)}, {*(f"features.{n}" for n in range(4, 9)), "classifier"}]
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(second(first(images)), whole(images))
