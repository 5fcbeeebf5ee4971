"""A complete run in this process: the contents of its folder."""

import json
import pickle
import zipfile
from dataclasses import replace

import pytest
import torch

from messages import refused
from slipway.base.contract import EXIT_CONFIG
from slipway.base.environment import read_environment
from slipway.base.stop import Reason, StopRequest
from slipway.dist.communicator import Alone
from trainer.config.settings import DataConfig, Launch, ModelConfig, RunConfig, Settings, TrainConfig
from trainer.parallel.single import SingleStrategy
from trainer.train import run


def run_alone(settings, **env):
    comm = Alone(torch.device("cpu"))
    return run(settings, comm, SingleStrategy(settings), StopRequest(), read_environment(env))


def snapshot(path):
    """Return the bytes of each file below ``path``, by name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train three steps in this process with every output enabled."""
    path = tmp_path_factory.mktemp("run") / "mine"
    settings = Settings(
        data=DataConfig(crop_padding=1),
        model=ModelConfig(arch="mlp", ema_decay=0.9),
        train=TrainConfig(max_steps=3, epochs=1),
        run=RunConfig(log_interval=1, checkpoint_interval=2, tensorboard=True, record_samples=True),
        launch=Launch(device="cpu", threads=1, output_dir=str(path)),
    )
    assert run_alone(settings) == Reason.NONE
    return path


class TestCompletedRun:
    @staticmethod
    def is_pickle(path):
        """Return whether ``path`` is a pickle, directly or inside a ZIP as torch.save writes it."""
        data = path.read_bytes()
        return zipfile.is_zipfile(path) or data.startswith(b"\x80") or b"\x80\x02}" in data

    def test_run_folder_has_files_of_contract(self, finished):
        assert {entry.name for entry in finished.iterdir()} == {
            *("checkpoints", "config.toml", "figures", "goodput.jsonl", "logs", "metrics.jsonl", "run.json"),
            *("status.json", "tensorboard", "verdict.1"),
        }
        assert {entry.name for entry in (finished / "logs").iterdir()} == {"1", "samples.rank0.jsonl"}
        for name in ("config.toml", "run.json", "status.json"):
            assert (finished / "logs" / "1" / name).read_bytes() == (finished / name).read_bytes()
        assert (finished / "verdict.1").read_text() == "done 3 complete\n"
        assert {entry.name for entry in (finished / "checkpoints").iterdir()} == {
            *("latest", "best", "step_00000002", "step_00000003")
        }
        assert {entry.name for entry in (finished / "checkpoints" / "latest").iterdir()} == {
            *("manifest.json", "model.safetensors", "optimizer.safetensors", "ema.safetensors")
        }

    def test_run_folder_contains_no_pickle(self, finished, tmp_path):
        (tmp_path / "plain").write_bytes(pickle.dumps({"a": 1}, protocol=2))
        torch.save({"a": torch.zeros(1)}, tmp_path / "torch")
        assert self.is_pickle(tmp_path / "plain")
        assert self.is_pickle(tmp_path / "torch")
        files = [file for file in finished.rglob("*") if file.is_file()]
        assert len(files) > 10
        assert [file for file in files if self.is_pickle(file)] == []

    def test_metrics_record_each_step_and_validation(self, finished):
        records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
        assert [(record["kind"], record["step"]) for record in records] == [
            ("train", 1),
            ("train", 2),
            ("train", 3),
            ("validation", 3),
        ]

    def test_sample_ids_of_each_step_are_recorded(self, finished):
        records = [json.loads(line) for line in (finished / "logs" / "samples.rank0.jsonl").read_text().splitlines()]
        assert [(record["step"], len(record["ids"])) for record in records] == [(0, 64), (1, 64), (2, 64)]

    @pytest.mark.parametrize("attempt", ["", "2"])
    def test_refused_resume_leaves_run_folder_unchanged(self, finished, attempt):
        before = snapshot(finished)
        settings = Settings(
            model=ModelConfig(arch="mnist-cnn"),
            launch=Launch(device="cpu", threads=1, output_dir=str(finished), resume="auto"),
        )
        with refused("different-run", "model.arch", "'mlp'", "'mnist-cnn'"):
            run_alone(settings, TRAINER_ATTEMPT=attempt)
        after = snapshot(finished)
        verdict = after.pop("verdict.2", b"")
        assert verdict.startswith(b"failed 3 different-run: ") == bool(attempt)
        assert after == before


def test_slipway_trackers_variable_selects_trackers(tmp_path):
    settings = Settings(
        model=ModelConfig(arch="mlp"),
        train=TrainConfig(max_steps=1, epochs=1),
        run=RunConfig(log_interval=1, figures=False),
        launch=Launch(device="cpu", threads=1, output_dir=str(tmp_path / "run")),
    )
    with refused("unknown-tracker", "'wandbee'", code=EXIT_CONFIG):
        run_alone(settings, SLIPWAY_TRACKERS="wandbee")
    dry = replace(settings, launch=replace(settings.launch, dry_run=True))
    run_alone(dry, SLIPWAY_TRACKERS="mlflow")
    assert not (tmp_path / "run" / "mlruns").exists()
    settings = replace(settings, launch=replace(settings.launch, resume="auto"))
    run_alone(settings, SLIPWAY_TRACKERS="mlflow")
    found = {path.parent.name + "/" + path.name for path in (tmp_path / "run" / "mlruns").rglob("metrics/*/*")}
    assert {"train/loss", "validation/accuracy"} <= found


def test_run_in_parts_by_stop_epoch_equals_uninterrupted_run(tmp_path):
    def train(name, stop_epoch=None):
        settings = Settings(
            data=DataConfig(crop_padding=1),
            model=ModelConfig(arch="mlp"),
            train=TrainConfig(epochs=3, batch_size=256),
            run=RunConfig(log_interval=1, figures=False),
            launch=Launch(
                device="cpu", threads=1, output_dir=str(tmp_path / name), resume="auto", stop_epoch=stop_epoch
            ),
        )
        assert run_alone(settings) == Reason.NONE
        found = snapshot(tmp_path / name / "checkpoints" / "latest")
        records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        place = ("kind", "step", "loss", "accuracy", "lr")
        weights = {file: found[file] for file in ("model.safetensors", "optimizer.safetensors")}
        return weights, [[record.get(key) for key in place] for record in records]

    whole, records = train("whole")
    assert [(record[0], record[1]) for record in records if record[0] == "validation"] == [
        ("validation", step) for step in (6, 12, 18)
    ]
    parts = [train("parts", stop_epoch=epochs) for epochs in (1, 1, 2, 9)]
    assert [part[1] for part in parts] == [records[:7], records[:7], records[:14], records]
    assert parts[-1][0] == whole
    assert (tmp_path / "parts" / "verdict.1").read_text() == "done 6 complete\n"
    assert (tmp_path / "parts" / "config.toml").read_text() == (tmp_path / "whole" / "config.toml").read_text()
