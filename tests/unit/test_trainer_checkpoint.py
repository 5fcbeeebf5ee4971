"""From a learner to a checkpoint and back: training continues as if uninterrupted."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from learners import new_learner
from messages import refused
from savers import saving_into
from slipway.checkpoint.format import Checkpoint, read_checkpoint, write_checkpoint
from slipway.checkpoint.header import Header, Metric, Position
from slipway.checkpoint.store import CheckpointStore
from slipway.dist.communicator import Alone
from slipway.rng.permutation import ORDER_VERSION
from trainer.config.settings import DataConfig, ModelConfig, OptimConfig, Settings, TrainConfig
from trainer.data.loader import Batch
from trainer.data.micro_batches import MicroBatch
from trainer.engine.checkpoint import (
    IDENTITY,
    capture,
    check_resumable,
    facts,
    identity_values,
    require_trainer_checkpoint,
    restore,
)
from trainer.evaluate.trained_run import check_config

SHAPE = (1, 8, 8)
SQUASHED = ["data.resize", "'crop'", "'squash'"]
POSITION = Position(step=3, epoch=1, samples=24, bad=2, elapsed=1.5)


def config_of(arch="mlp", *, optimizer="adamw", amp="none", lr=0.01, decay_norm_bias=True, **model):
    return Settings(
        model=ModelConfig(arch=arch, **model),
        optim=OptimConfig(optimizer=optimizer, lr=lr, weight_decay=0.1, decay_norm_bias=decay_norm_bias),
        train=TrainConfig(amp=amp),
    )


def captured(learner, position, config, *, accuracy):
    metric = None if accuracy is None else Metric("accuracy", accuracy)
    return capture(learner, Header(position, metric, facts(learner, config)))


def learner_of(config):
    return new_learner(
        config,
        Alone(torch.device("cpu")),
        shape=SHAPE,
        classes=10,
        samples_per_epoch=100,
    )


def train(learner, steps):
    for step in steps:
        generator = np.random.default_rng(step)
        images = torch.from_numpy(generator.integers(0, 256, (8, *SHAPE), dtype=np.uint8))
        learner.start_step(Position(step=step, samples=step), step_samples=1)
        learner.backward([Batch(images, torch.arange(8), MicroBatch(np.arange(8), True, 8), 0)], count=1)
        learner.step()


def tensors_of(learner):
    found = captured(learner, Position(), Settings(), accuracy=None).tensors
    return {f"{file}/{name}": value.clone() for file, named in found.items() for name, value in named.items()}


CASES = {
    "sgd": {"optimizer": "sgd"},
    "adadelta": {"optimizer": "adadelta"},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw"},
    "dropout": {"arch": "mnist-cnn"},
    "batch norm": {"arch": "resnet18"},
    "moving average": {"ema_decay": 0.9},
    "channels last": {"arch": "resnet18", "channels_last": True},
    "fp16": {"amp": "fp16", "arch": "mlp"},
    "no decay of norms": {"arch": "resnet18", "decay_norm_bias": False},
}


@pytest.mark.parametrize("case", CASES)
def test_restored_learner_continues_bitwise(tmp_path, case):
    config = config_of(**CASES[case])
    straight = learner_of(config)
    train(straight, range(3))
    store = CheckpointStore(tmp_path, keep=1)
    saver = saving_into(store)
    saver.save(captured(straight, POSITION, config, accuracy=0.5))
    train(straight, range(3, 6))
    saver.finish()

    resumed = learner_of(config)
    assert restore(resumed, store.newest()).position == POSITION
    train(resumed, range(3, 6))
    expected, found = tensors_of(straight), tensors_of(resumed)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert resumed.scaler.state_dict() == straight.scaler.state_dict()


def test_restored_learner_keeps_randomness_version():
    config = config_of(arch="mnist-cnn")
    straight, resumed = learner_of(config), learner_of(config)
    straight.use_randomness(1)
    train(straight, range(2))
    found = captured(straight, POSITION, config, accuracy=0.5)
    tensors = {file: {name: value.clone() for name, value in some.items()} for file, some in found.tensors.items()}
    assert found.header.facts["randomness_version"] == 1
    restore(resumed, dataclasses.replace(found, tensors=tensors))
    for learner in (straight, resumed):
        train(learner, range(2, 4))
    expected, after = tensors_of(straight), tensors_of(resumed)
    assert all(torch.equal(after[name], value) for name, value in expected.items())


def test_restore_without_checkpoint_leaves_learner_unchanged():
    learner = learner_of(config_of())
    before = tensors_of(learner)
    assert restore(learner, None).position == Position()
    assert all(torch.equal(value, before[name]) for name, value in tensors_of(learner).items())


def test_optimizer_state_is_saved_by_parameter_name():
    learner = learner_of(config_of(optimizer="sgd"))
    train(learner, [0])
    found = captured(learner, POSITION, Settings(), accuracy=None).tensors["optimizer"]
    assert list(found) == [f"momentum_buffer/{name}" for name, _ in learner.model.named_parameters()]


def test_model_file_loads_in_plain_torch(tmp_path):
    learner = learner_of(config_of("mlp"))
    train(learner, [0])
    write_checkpoint(tmp_path / "saved", captured(learner, POSITION, Settings(), accuracy=None))
    widths = [64, 512, 128, 64, 32, 10]
    layers = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    plain = nn.Sequential(*layers[:-1])
    plain.load_state_dict(load_file(tmp_path / "saved" / "model.safetensors"))
    images = torch.randn(2, *SHAPE)
    assert torch.equal(plain(images), learner.model(images))


def test_moving_average_enabled_on_resume_starts_from_weights(tmp_path):
    learner = learner_of(config_of())
    train(learner, range(2))
    write_checkpoint(tmp_path / "saved", captured(learner, POSITION, Settings(), accuracy=None))
    resumed = learner_of(config_of(ema_decay=0.9))
    restore(resumed, read_checkpoint(tmp_path / "saved"))
    weights = learner.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in resumed.evaluated.state_dict().items())
    train(resumed, [2])


def test_checkpoint_header_has_position_metric_and_facts():
    config = config_of()
    position, metric, said, _ = captured(learner_of(config), POSITION, config, accuracy=0.5).header
    assert (position, metric) == (POSITION, Metric("accuracy", 0.5, maximize=True))
    assert list(said) == [
        *("seed", "world_size", "backend", "order", "randomness_version", "identity"),
        *("identity_sha256", "may_differ", "config"),
    ]
    assert (said["seed"], said["world_size"], said["backend"]) == (0, 1, "single")
    assert {"config.toml", "identity"} <= set(said["may_differ"].split())


class TestIdentity:
    @pytest.fixture
    def found(self):
        config = config_of()
        return captured(learner_of(config), POSITION, config, accuracy=None)

    @pytest.fixture
    def learner(self):
        return learner_of(config_of())

    def test_changed_number_of_training_samples_is_refused(self, found, learner):
        learner.data["training samples"] = 7
        with refused("different-run", "training samples", 100, 7):
            check_resumable(found, config_of(), learner)

    def test_session_checkpoint_is_refused_by_trainer(self, found):
        require_trainer_checkpoint(found)
        of_session = Checkpoint(found.tensors, found.header._replace(facts={"order": 2}))
        with refused("checkpoint-of-script"):
            require_trainer_checkpoint(of_session)

    def test_settings_that_may_differ_are_accepted(self, found, learner):
        check_resumable(found, config_of(lr=5.0), learner)
        other = Settings(train=TrainConfig(epochs=99, batch_size=3), model=ModelConfig(arch="mlp"))
        check_resumable(found, other, learner)

    @pytest.mark.parametrize(
        ("changed", "values"),
        [
            ({"train": TrainConfig(seed=8)}, ["train.seed", 0, 8]),
            ({"model": ModelConfig(arch="resnet18")}, ["model.arch", "'mlp'", "'resnet18'"]),
            ({"data": DataConfig(val_fraction=0.3)}, ["data.val_fraction", 0.2, 0.3]),
            ({"data": DataConfig(flip=True)}, ["data.flip", False, True]),
            ({"data": DataConfig(resize="squash")}, SQUASHED),
        ],
    )
    def test_changed_identity_settings_are_refused_with_both_values(self, found, learner, changed, values):
        with refused("different-run", *values):
            check_resumable(found, dataclasses.replace(config_of(), **changed), learner)

    def test_missing_identity_key_of_old_checkpoint_means_default(self, found, learner):
        del found.header.facts["identity"]["data.resize"]
        check_resumable(found, config_of(), learner)
        other = dataclasses.replace(config_of(), data=DataConfig(resize="squash"))
        with refused("different-run", *SQUASHED):
            check_resumable(found, other, learner)
        check_config(found.header, config_of())
        with refused("different-run", *SQUASHED):
            check_config(found.header, other)

    @pytest.mark.parametrize("version", [{"order": 99}, {"sampler_version": 2}], ids=["newer", "older"])
    def test_other_order_version_is_refused(self, found, learner, version):
        del found.header.facts["order"]
        found.header.facts.update(version)
        with refused("order-version", ORDER_VERSION):
            check_resumable(found, config_of(), learner)

    def test_identity_keys_are_configuration_keys(self):
        assert list(identity_values(Settings())) == list(IDENTITY)
