"""--memory: its estimate compared with the allocations of a real step, and its refusals."""

import re

import pytest
import torch
from torch import nn

from learners import new_learner
from messages import refused
from slipway.dist.communicator import Alone
from trainer.build import build_parts
from trainer.config.settings import DataConfig, Launch, ModelConfig, OptimConfig, Settings, TrainConfig
from trainer.data.loader import Batch
from trainer.data.micro_batches import MicroBatch
from trainer.engine import memory
from trainer.engine.auto_precision import PLAIN, settled
from trainer.engine.memory import memory_of
from trainer.model import initial_model
from trainer.model.memory_meter import Meter
from trainer.parallel.single import SingleStrategy

SHAPE, CLASSES, SAMPLES = (3, 32, 32), 10, 6
CPU = torch.device("cpu")


def settings_of(arch="resnet18", *, micro_steps=2, optim=None, train=None, **model):
    settings = Settings(
        model=ModelConfig(arch=arch, **model),
        optim=optim or OptimConfig(),
        train=TrainConfig(
            **{
                "batch_size": micro_steps * SAMPLES,
                "grad_accum_steps": micro_steps,
                "val_batch_size": 4,
                **(train or {}),
            }
        ),
    )
    return settled(settings, PLAIN)


def computed(settings, cuts=()):
    model = initial_model(settings, shape=SHAPE, classes=CLASSES)
    return memory_of(model, settings, cuts=cuts, shape=SHAPE, ranks=1)


def taken(settings):
    """Return what a real step of a real learner allocates at its peak, besides weights and gradients."""
    learner = new_learner(settings, Alone(CPU), shape=SHAPE, classes=CLASSES, mean_std=MEAN_STD, samples_per_epoch=9)
    learner.use_randomness(1)
    meter = Meter([*learner.model.parameters(), *learner.model.buffers()])
    for parameter in learner.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda owner: meter.forget(owner.grad))
    micro_steps = settings.train.grad_accum_steps
    batches = [
        Batch(
            torch.zeros(SAMPLES, *SHAPE, dtype=torch.uint8),
            torch.zeros(SAMPLES, dtype=torch.int64),
            MicroBatch(torch.arange(SAMPLES), True, SAMPLES, number, micro_steps),
            0,
        )
        for number in range(micro_steps)
    ]
    with meter:
        learner.backward(batches, count=micro_steps)
    return meter.peak[0]


MEAN_STD = (torch.full((3,), 0.5, dtype=torch.float64), torch.full((3,), 0.25, dtype=torch.float64))


@pytest.mark.parametrize(
    ("arch", "change"),
    [
        ("resnet18", {}),
        ("mobilenet_v3_small", {}),
        pytest.param("mobilenet_v3_small", {"recompute": True}, marks=pytest.mark.slow),
        pytest.param("mobilenet_v3_small", {"train": {"amp": "bf16"}}, marks=pytest.mark.slow),
    ],
)
def test_estimated_activations_match_measured_step(arch, change):
    settings = settings_of(arch, **change)
    (stage,) = computed(settings)
    assert stage.activations == pytest.approx(taken(settings), rel=0.02)


def test_estimate_of_weights_gradients_optimizer_and_ema():
    (stage,) = computed(settings_of(ema_decay=0.9))
    model = initial_model(settings_of(), shape=SHAPE, classes=CLASSES)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    assert (stage.parameters, stage.gradients, stage.optimizer) == (weights + buffers, weights, 2 * weights)
    assert stage.average == weights + buffers
    assert stage.total == 2 * (weights + buffers) + 3 * weights + stage.activations


@pytest.mark.parametrize(
    ("name", "momentum", "copies"), [("sgd", 0.0, 0), ("sgd", 0.9, 1), ("adadelta", 0.9, 2), ("adamw", 0.9, 2)]
)
def test_estimate_of_optimizer_state_per_optimizer(name, momentum, copies):
    (stage,) = computed(settings_of("mlp", optim=OptimConfig(optimizer=name, momentum=momentum)))
    assert stage.optimizer == copies * stage.gradients


def test_frozen_weights_have_no_gradients_or_optimizer_state():
    model = initial_model(settings_of(), shape=SHAPE, classes=CLASSES)
    for parameter in model.layer1.parameters():
        parameter.requires_grad_(False)
    (stage,) = memory_of(model, settings_of(), cuts=(), shape=SHAPE, ranks=1)
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    assert (stage.gradients, stage.optimizer) == (trained, 2 * trained)


def test_stages_sum_to_whole_model_and_gpipe_needs_more_activations():
    (whole,) = computed(settings_of(micro_steps=4))
    cuts = ["layer2", "layer3"]
    of_1f1b = computed(settings_of(micro_steps=4), cuts)
    of_gpipe = computed(settings_of(micro_steps=4, pipeline="gpipe"), cuts)
    for name in ("parameters", "gradients", "optimizer"):
        assert sum(getattr(stage, name) for stage in of_1f1b) == getattr(whole, name)
    for less, more in zip(of_1f1b, of_gpipe, strict=True):
        assert less.activations < more.activations


@pytest.mark.parametrize("cuts", [[], ["layer2"], ["layer2", "layer3"]])
def test_number_of_micro_batches_raises_estimate_only_in_gpipe(cuts, monkeypatch):
    few = computed(settings_of(micro_steps=2 * (len(cuts) + 1)), cuts)
    monkeypatch.setattr(memory, "PERIODS", 100)
    assert computed(settings_of(micro_steps=9), cuts) == few
    if cuts:
        many = computed(settings_of(micro_steps=9, pipeline="gpipe"), cuts)
        assert all(stage.activations > less.activations for stage, less in zip(many, few, strict=True))


def test_recompute_lowers_activation_estimate():
    (whole,), (less,) = (computed(settings_of("efficientnet_b0", recompute=on)) for on in (False, True))
    assert less.activations < 0.6 * whole.activations


def test_estimate_of_4_tb_batch_allocates_no_memory():
    """A batch of 4 TB: the estimate must not allocate it."""
    settings = settings_of(train={"batch_size": 2**20, "grad_accum_steps": 1, "val_batch_size": 2**20})
    model = initial_model(settings, shape=(3, 224, 224), classes=CLASSES)
    (stage,) = memory_of(model, settings, cuts=[], shape=(3, 224, 224), ranks=1)
    assert stage.total > 2**44


def parts_of(**model):
    settings = Settings(
        data=DataConfig(dataset="synthetic", synthetic_shape=(3, 32, 32), synthetic_samples=40),
        model=ModelConfig(**{"arch": "resnet18", **model}),
        train=TrainConfig(batch_size=8, val_batch_size=8),
        launch=Launch(dry_run=True, memory=True, device="cpu"),
    )
    return build_parts(settled(settings, PLAIN), Alone(CPU), SingleStrategy(settings))


def test_memory_estimate_is_logged_if_model_fits(caplog):
    with caplog.at_level("INFO"):
        parts_of(split="layer3")
    text = "\n".join(caplog.messages)
    assert re.search(r"\bstage 0\b.* cpu: .*\b2\.\d MB.*\b2\.\d MB.*\b5\.\d MB", text)
    assert re.search(r"(?m)^cpu: [^\d]*([\d,.]+ MB)[^\d]*([\d,.]+ MB)$", text)


def test_model_that_does_not_fit_is_refused_with_remedies(monkeypatch):
    monkeypatch.setattr(memory, "_capacity", lambda _device, _comm: 10**8)
    with refused("out-of-memory", "cpu ", "100.0 MB", "--grad-accum-steps", "--batch-size"):
        parts_of()


class Deciding(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(3 * 32 * 32, classes)

    def forward(self, x):
        return self.layer(x.flatten(1) if x.sum().item() > 0 else -x.flatten(1))


def deciding(shape, classes):  # noqa: ARG001 -- a factory has both
    return Deciding(classes)


def test_estimate_of_data_dependent_model_is_refused():
    with refused("memory-unknown", "--memory", "Deciding", "DataDependent"):
        parts_of(arch=f"{__name__}:deciding")
