"""A run's model, read without changing the run, and exported with everything that plain torch needs."""

import dataclasses
import json
import os
import re
import shutil

import numpy as np
import pytest
import safetensors
import tomli_w
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from learners import new_learner
from messages import assert_names, refused
from ranks import CPU
from readme import CLASSIFY
from slipway.base.contract import EXIT_USAGE
from slipway.base.errors import SlipwayError
from slipway.checkpoint.header import Header, Metric, Position
from slipway.checkpoint.stateful import capture as capture_components
from slipway.checkpoint.store import CheckpointStore
from slipway.dist.communicator import Alone
from trainer.config.settings import DataConfig, ModelConfig, Settings, experiment
from trainer.data.sets import open_data
from trainer.engine.checkpoint import IMAGES, capture, facts, image_facts
from trainer.evaluate import trained_run as source_module
from trainer.evaluate.export import main as export
from trainer.evaluate.trained_run import check_config, check_data, find_source, model_of, read_trained
from trainer.model import build_model

CONFIG = Settings(model=ModelConfig(arch="mlp", ema_decay=0.5))
DATA = open_data(CONFIG.data)
NO_FILE = "Not a regular file"


def save(run, step, *, accuracy=None, config=CONFIG, keep=3):
    """Save a checkpoint as the trainer does; its weights equal ``step``, their average half of it."""
    learner = new_learner(config, Alone(CPU), shape=DATA.train.shape, classes=10, samples_per_epoch=len(DATA.train))
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.fill_(step)
        if isinstance(learner.ema, AveragedModel):
            for parameter in learner.ema.module.parameters():
                parameter.fill_(step / 2)
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    (run / "config.toml").write_text(tomli_w.dumps(experiment(config)))
    known = facts(learner, config) | {IMAGES: image_facts(DATA.train)}
    metric = None if accuracy is None else Metric("accuracy", accuracy)
    CheckpointStore(run / "checkpoints", keep=keep).add(capture(learner, Header(Position(step=step), metric, known)))
    return run / "checkpoints" / f"step_{step:08d}"


@pytest.fixture
def run(tmp_path):
    """Return a run folder with checkpoints of steps 1 to 3; step 2 is the best."""
    for step, accuracy in [(1, 0.1), (2, 0.9), (3, 0.5)]:
        save(tmp_path / "run", step, accuracy=accuracy)
    return tmp_path / "run"


def weight(state):
    return next(iter(state.values())).unique().item()


def tree(folder):
    return {
        path: (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")
    }


class TestSource:
    """Which checkpoint is read."""

    @pytest.mark.parametrize(
        ("name", "best", "step"),
        [
            ("", False, 3),
            ("", True, 2),
            ("checkpoints/latest", False, 3),
            ("checkpoints/best", False, 2),
            ("checkpoints/step_00000001", False, 1),
        ],
    )
    def test_newest_best_or_given_checkpoint_is_read(self, run, name, best, step):
        before = tree(run)
        source = find_source(str(run / name), best=best)
        path, found = read_trained(source)
        assert (found.header.position.step, (path / "manifest.json").exists()) == (step, True)
        assert source.settings("", {}).model.arch == "mlp"
        assert tree(run) == before

    def test_run_is_found_by_relative_path(self, run, monkeypatch):
        monkeypatch.chdir(run / "checkpoints")
        assert find_source("latest", best=False).settings("", {}).model.arch == "mlp"
        monkeypatch.chdir(run)
        assert find_source(".", best=False).settings("", {}).model.arch == "mlp"

    def test_damaged_checkpoint_is_skipped_unless_given_by_path(self, run):
        (run / "checkpoints" / "latest" / "model.safetensors").write_bytes(b"damaged")
        assert read_trained(find_source(str(run), best=False))[1].header.position.step == 2
        with refused("damaged-checkpoint", run / "checkpoints" / "latest", "model.safetensors", " 7 ", "--best"):
            read_trained(find_source(str(run / "checkpoints" / "latest"), best=False))
        (run / "checkpoints" / "best" / "model.safetensors").unlink()
        with refused("damaged-checkpoint", run / "checkpoints"):
            read_trained(find_source(str(run), best=True))

    def test_fifo_in_run_folder_is_refused_without_blocking(self, run):
        for path in (run / "checkpoints" / "latest" / "model.safetensors", run / "config.toml"):
            path.unlink()
            os.mkfifo(path)
        with refused("cannot-read", run / "config.toml", NO_FILE):
            find_source(str(run), best=False).settings("", {})
        with refused("damaged-checkpoint", run / "checkpoints" / "latest", "model.safetensors", " 0 "):
            read_trained(find_source(str(run / "checkpoints" / "latest"), best=False))
        os.mkfifo(run / "fifo")
        with refused("not-a-run", run / "fifo"):
            find_source(str(run / "fifo"), best=False)
        manifest = run / "checkpoints" / "best" / "manifest.json"
        manifest.unlink()
        os.mkfifo(manifest)
        with refused("cannot-read", "manifest.json", NO_FILE):
            read_trained(find_source(str(run), best=True))

    def test_copied_checkpoint_requires_config_of_run(self, run, tmp_path):
        shutil.copytree(run / "checkpoints" / "latest", tmp_path / "copy")
        source = find_source(str(tmp_path / "copy"), best=False)
        assert read_trained(source)[1].header.position.step == 3
        with refused("missing-config", tmp_path / "copy", "config.toml", "--config"):
            source.settings("", {})
        assert source.settings(str(run / "config.toml"), {"data": {"workers": 7}}).data.workers == 7

    def test_newer_checkpoint_is_read_if_running_run_deletes_old(self, tmp_path, monkeypatch):
        first = save(tmp_path, 1, accuracy=0.1, keep=1)
        real = source_module.CheckpointStore.newest

        def newest(store):
            if first.exists():
                save(tmp_path, 2, accuracy=0.2, keep=1)
                raise SlipwayError("damaged-checkpoint", "gone")
            return real(store)

        monkeypatch.setattr(source_module.CheckpointStore, "newest", newest)
        assert read_trained(find_source(str(tmp_path), best=False))[1].header.position.step == 2

    @pytest.mark.parametrize(
        ("name", "best", "slug"),
        [
            ("none", False, "not-a-run"),
            ("empty", False, "not-a-run"),
            ("begun", False, "no-checkpoint"),
            ("begun", True, "no-best-checkpoint"),
            ("file", False, "not-a-run"),
            ("script", False, "checkpoint-of-script"),
        ],
    )
    def test_path_without_trained_model_is_refused(self, tmp_path, name, best, slug):
        (tmp_path / "empty").mkdir()
        (tmp_path / "begun" / "checkpoints").mkdir(parents=True)
        (tmp_path / "file").touch()
        (tmp_path / "script" / "checkpoints").mkdir(parents=True)
        script = capture_components({"model": torch.nn.Linear(1, 1)}, Header(Position(step=1)))
        CheckpointStore(tmp_path / "script" / "checkpoints", keep=1).add(script)
        with refused(slug, tmp_path / name):
            read_trained(find_source(str(tmp_path / name), best=best))

    def test_best_flag_with_checkpoint_path_is_refused(self, run):
        with refused("flag-conflict", "--best", run / "checkpoints" / "latest", code=EXIT_USAGE):
            find_source(str(run / "checkpoints" / "latest"), best=True)

    def test_run_without_config_is_refused(self, run):
        (run / "config.toml").unlink()
        with refused("missing-config", run, "config.toml", "--config"):
            find_source(str(run), best=False).settings("", {})
        with refused("missing-config", "none.toml"):
            find_source(str(run), best=False).settings("none.toml", {})


class TestConfigAndDataMatch:
    """Whether configuration and data match the model."""

    def test_config_of_different_run_is_refused(self, run):
        header = read_trained(find_source(str(run), best=False))[1].header
        check_config(header, CONFIG)
        other = dataclasses.replace(CONFIG, model=ModelConfig(arch="mnist-cnn"))
        with refused("different-run", "model.arch ", "'mlp'", "'mnist-cnn'"):
            check_config(header, other)

    @pytest.mark.parametrize(
        ("change", "values"),
        [
            ({"classes": DATA.train.classes[:9]}, ["classes", " 10 ", " 9"]),
            ({"classes": ("zero", *DATA.train.classes[1:])}, [" 0 ", "'0'", "'zero'"]),
            ({"images": DATA.train.images[:, :, 1:]}, ["[1, 8, 8]", "[1, 7, 8]"]),
        ],
    )
    def test_different_classes_or_image_shape_are_refused(self, run, change, values):
        header = read_trained(find_source(str(run), best=False))[1].header
        with refused("different-data", *values):
            check_data(header, dataclasses.replace(DATA.train, **change), CONFIG.data.data_dir)

    def test_different_number_of_images_gives_warning(self, run):
        header = read_trained(find_source(str(run), best=False))[1].header
        assert check_data(header, DATA.train, CONFIG.data.data_dir) == ""
        other = dataclasses.replace(DATA.train, images=DATA.train.images[:9], labels=DATA.train.labels[:9])
        assert_names(check_data(header, other, CONFIG.data.data_dir), " 9 ", "1438")


class TestExport:
    """``trainer export``."""

    @pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.safetensors"])
    def test_export_writes_weights_and_metadata_to_one_file(self, run, name, tmp_path, capsys):
        before = tree(run)
        assert export([str(run), str(tmp_path / name)]) == 0
        assert tree(run) == before
        if name.endswith(".safetensors"):
            state = load_file(tmp_path / name)
            with safetensors.safe_open(tmp_path / name, "pt") as file:
                found = {key: json.loads(value) for key, value in file.metadata().items()}
        else:
            found = torch.load(tmp_path / name, weights_only=True)
            state = found.pop("state_dict")
        mean, std = DATA.train.mean_std
        assert found == {
            "arch": "mlp",
            "average": True,
            "classes": list("0123456789"),
            "image_shape": [1, 8, 8],
            "mean": mean.tolist(),
            "resize": "crop",
            "std": std.tolist(),
            "step": 3,
        }
        assert weight(state) == 1.5
        build_model(CONFIG.model, shape=DATA.train.shape, classes=10).load_state_dict(state)
        out = capsys.readouterr().out
        assert out.count("\n") == 1
        assert_names(out, f"{tmp_path / name}: ", "average", run / "checkpoints" / "step_00000003", "mlp", " 10 ")

    def test_export_best_checkpoint_and_unaveraged_weights(self, run, tmp_path):
        assert export([str(run), str(tmp_path / "a.pt"), "--best", "--no-average"]) == 0
        found = torch.load(tmp_path / "a.pt", weights_only=True)
        assert (weight(found["state_dict"]), found["average"]) == (2, False)

    def test_export_of_run_without_average_writes_plain_weights(self, tmp_path):
        save(tmp_path / "run", 4, config=Settings(model=ModelConfig(arch="mlp")))
        assert export([str(tmp_path / "run"), str(tmp_path / "a.pt")]) == 0
        found = torch.load(tmp_path / "a.pt", weights_only=True)
        assert (weight(found["state_dict"]), found["average"]) == (4, False)
        assert not model_of(read_trained(find_source(str(tmp_path / "run"), best=False))[1], average=True).is_average

    @pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
    def test_training_starts_from_exported_weights(self, run, name, tmp_path):
        assert export([str(run), str(tmp_path / name)]) == 0
        config = ModelConfig(arch="mlp", weights=str(tmp_path / name))
        assert weight(build_model(config, shape=(1, 8, 8), classes=10).state_dict()) == 1.5

    @pytest.mark.parametrize(
        ("name", "slug", "values"),
        [
            ("a.onnx", "export-format", ["torch.onnx.export"]),
            ("a.bin", "export-format", [".safetensors", ".pt", ".pth"]),
            ("there.pt", "file-exists", []),
            ("fifo.pt", "file-exists", []),
            ("dangling.pt", "file-exists", []),
            ("none/a.pt", "cannot-write", ["No such file"]),
        ],
    )
    def test_invalid_export_target_is_refused_and_kept(self, run, tmp_path, name, slug, values):
        (tmp_path / "there.pt").write_bytes(b"mine")
        os.mkfifo(tmp_path / "fifo.pt")
        (tmp_path / "dangling.pt").symlink_to("nowhere")
        before = sorted(tmp_path.rglob("*"))
        with refused(slug, tmp_path / name, *values):
            export([str(run), str(tmp_path / name)])
        assert sorted(tmp_path.rglob("*")) == before
        assert (tmp_path / "there.pt").read_bytes() == b"mine"


@pytest.mark.parametrize("prepared", [{}, {"resize": "squash", "normalise": False}], ids=["cropped", "squashed"])
def test_exported_model_classifies_in_plain_torch_as_in_trainer(tmp_path, monkeypatch, capsys, prepared):
    names = [f"class {number}" for number in range(8)]
    generator = np.random.default_rng(0)
    for name in names:
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(2):
            pixels = generator.integers(0, 256, (3, 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((40, 50)).save(tmp_path / "images" / name / f"{number}.png")
    data = DataConfig(
        dataset="imagefolder", data_dir=str(tmp_path / "images"), image_size=64, val_fraction=0.5, **prepared
    )
    config = Settings(data=data, model=ModelConfig(arch="resnet18"))
    parts = open_data(data)
    shape = parts.train.shape
    learner = new_learner(
        config, Alone(CPU), shape=shape, classes=8, mean_std=parts.train.mean_std, samples_per_epoch=len(parts.train)
    )
    learner.evaluated.eval()
    nn.init.normal_(learner.model.fc.weight)
    images = parts.validation.fetch(np.arange(len(parts.validation)), None).images
    with torch.no_grad():  # a random model assigns one class to all images unless that is centered
        learner.model.fc.bias -= learner.logits(images).mean(0)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.toml").write_text(tomli_w.dumps(experiment(config)))
    known = facts(learner, config) | {IMAGES: image_facts(parts.train)}
    CheckpointStore(tmp_path / "run" / "checkpoints", keep=1).add(
        capture(learner, Header(Position(step=1), None, known))
    )
    monkeypatch.chdir(tmp_path)
    assert export(["run", "photos.pt"]) == 0
    expected = [names[number] for number in learner.logits(images).argmax(1).tolist()]
    capsys.readouterr()
    for number in range(len(parts.validation)):
        monkeypatch.setattr("sys.argv", ["classify.py", parts.validation.describe(number)])
        exec(compile(CLASSIFY, "classify.py", "exec"), {})  # noqa: S102 -- what docs/howto/evaluate.md has its reader save
    assert capsys.readouterr().out.splitlines() == expected
    assert len(set(expected)) > 1
    assert len(re.findall(r"(?m)^\w+\S* = |^model\.|^print", CLASSIFY)) == 7
