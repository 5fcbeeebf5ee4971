"""One optimizer step: each sample has the same weight, however a step is split into ranks and micro-batches."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fused_steps import unwritten_memory_is_nan
from learners import new_learner
from messages import refused
from ranks import OneOf
from slipway.base.environment import World
from slipway.checkpoint.header import Header, Position
from trainer.config.settings import ModelConfig, OptimConfig, Settings, TrainConfig
from trainer.data.loader import NO_LABEL, Batch
from trainer.data.micro_batches import rank_steps
from trainer.engine.checkpoint import capture, restore

SHAPE, CLASSES, COUNT = (1, 8, 8), 5, 13
MEAN_STD = (torch.tensor([0.4], dtype=torch.float64), torch.tensor([0.3], dtype=torch.float64))
IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (COUNT, *SHAPE), dtype=np.uint8))
LABELS = torch.arange(COUNT) % CLASSES


def learner_of(*, rank=0, size=1, arch="mlp", dtype="float64", optim=None, train=None, cuts=(), **model):
    """Return a Learner for ``rank`` of a world of ``size``, without the other ranks."""
    config = Settings(
        model=ModelConfig(arch=arch, **model),
        optim=OptimConfig(**(optim or {})),
        train=TrainConfig(dtype=dtype, **(train or {})),
    )
    ranks = OneOf(World(rank=rank, size=size))
    return new_learner(config, ranks, shape=SHAPE, classes=CLASSES, mean_std=MEAN_STD, samples_per_epoch=4, cuts=cuts)


def start(learner, step):
    """Start optimizer step ``step`` of epochs of four steps of one sample."""
    learner.start_step(Position(step=step, epoch=step // 4, samples=step % 4), step_samples=1)


def batches_of(rank=0, size=1, micro_steps=1, count=COUNT):
    """Yield the micro-batches of one step over the first ``count`` samples."""
    for micro in rank_steps(np.arange(count), start=0, batch_size=count, rank=rank, size=size, micro_steps=micro_steps):
        labels = LABELS[micro.ids] if micro.counted else torch.full((len(micro.ids),), NO_LABEL)
        yield Batch(IMAGES[micro.ids], labels, micro, 0)


def weights_of(learner):
    return torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()])


def gradients_of(learner, batches):
    batches = list(batches)
    learner.backward(batches, count=len(batches))
    return torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()])


def take_step(learner, step, *, micro_steps=1, overflow=False):
    """Take one optimizer step; with ``overflow``, a gradient in the first layer is inf."""
    start(learner, step)
    gradients_of(learner, batches_of(micro_steps=micro_steps))
    if overflow:
        next(learner.model.parameters()).grad[0, 0] = torch.inf
    learner.step()


def plain_gradients(model, count=COUNT, **loss):
    """Return the gradients of the mean loss over one large batch, in a few lines of plain torch."""
    model.zero_grad()
    images = (IMAGES[:count].double() / 255 - 0.4) / 0.3
    F.cross_entropy(model(images), LABELS[:count], **loss).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("micro_steps", [1, 2, 5, 13, 20])
def test_gradient_of_micro_batches_matches_whole_batch(micro_steps, smoothing):
    learner = learner_of(optim={"label_smoothing": smoothing})
    ours = gradients_of(learner, batches_of(micro_steps=micro_steps))
    assert torch.allclose(ours, plain_gradients(learner.model, label_smoothing=smoothing), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [2, 3, 4, 16])
@pytest.mark.parametrize("micro_steps", [1, 3])
def test_mean_gradient_over_ranks_matches_whole_batch(size, micro_steps):
    ranks = [
        gradients_of(learner_of(rank=rank, size=size), batches_of(rank, size, micro_steps)) for rank in range(size)
    ]
    assert torch.allclose(torch.stack(ranks).mean(0), plain_gradients(learner_of().model), rtol=1e-12, atol=1e-14)


def test_sample_without_label_adds_no_gradient():
    learner, (batch,) = learner_of(), batches_of()
    labels = batch.labels.clone()
    labels[9:] = NO_LABEL
    ours = gradients_of(learner, [batch._replace(labels=labels)])
    assert torch.allclose(ours, plain_gradients(learner.model, count=9) * 9 / COUNT, rtol=1e-12, atol=1e-14)


def test_loss_is_summed_over_samples():
    learner = learner_of()
    images = (IMAGES.double() / 255 - 0.4) / 0.3
    expected = F.cross_entropy(learner.model(images), LABELS, reduction="sum").item()
    gradients_of(learner, batches_of(micro_steps=3))
    assert learner.loss_sum.item() == pytest.approx(expected, rel=1e-12)


def test_clipping_limits_gradient_norm_of_whole_step():
    learner = learner_of(
        optim={"optimizer": "sgd", "momentum": 0.0, "clip_grad": 0.01, "schedule": "constant", "lr": 1.0}
    )
    before, gradient = weights_of(learner), plain_gradients(learner.model)
    learner.model.zero_grad()
    take_step(learner, 0, micro_steps=3)
    assert gradient.norm() > 0.01
    assert torch.allclose(before - weights_of(learner), 0.01 * gradient / gradient.norm(), rtol=1e-4, atol=1e-12)


def test_clipping_uses_unscaled_gradients_with_fp16():
    optim = {"optimizer": "sgd", "momentum": 0.0, "clip_grad": 0.01, "lr": 1.0}
    learner = learner_of(dtype="float32", optim=optim, train={"amp": "fp16"})
    before = weights_of(learner)
    take_step(learner, 0)
    assert (weights_of(learner) - before).norm().item() == pytest.approx(0.01, rel=1e-2)


def fp16_learner(*, scale=None, **options):
    """Return a learner with momentum whose initial loss scale is ``scale``."""
    options["optim"] = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1, **options.get("optim", {})}
    learner = learner_of(dtype="float32", train={"amp": "fp16"}, **options)
    if scale:
        learner.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return learner


def bytes_of(learner):
    state = learner.optimizer.state
    parameters = dict(learner.model.named_parameters())
    return {name: value.detach().numpy().tobytes() for name, value in parameters.items()} | {
        f"momentum of {name}": state[value]["momentum_buffer"].numpy().tobytes() for name, value in parameters.items()
    }


@pytest.mark.parametrize("cuts", [(), ("3",)])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("micro_steps", [1, 3])
@pytest.mark.parametrize("resumed", [False, True])
def test_first_steps_skipped_by_fp16_have_no_effect(cuts, clip, micro_steps, resumed):
    options = {"optim": {"clip_grad": clip}, "cuts": cuts}
    with unwritten_memory_is_nan():
        learner = fp16_learner(scale=4096.0, **options)
        for step in range(2):
            take_step(learner, step, micro_steps=micro_steps, overflow=True)
        assert not learner.optimizer.state
        assert learner.scaler.get_scale() == 1024
        if resumed:
            saved = capture(learner, Header(Position(step=2), facts={"randomness_version": learner.randomness}))
            learner = fp16_learner(**options)
            restore(learner, saved)
        unskipped = fp16_learner(scale=1024.0, **options)
        for step in range(2, 5):
            take_step(learner, step, micro_steps=micro_steps)
            take_step(unskipped, step, micro_steps=micro_steps)
    assert bytes_of(learner) == bytes_of(unskipped)
    learner.require_finite()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adadelta"])
def test_stages_skip_step_if_gradients_overflow_on_two_devices(optimizer, monkeypatch):
    learner = fp16_learner(scale=1024.0, cuts=("3",), optim={"optimizer": optimizer, "lr": 0.01})
    take_step(learner, 0)
    unscale = learner.scaler._unscale_grads_
    second = torch.device("meta")  # stands for another device: there is only a CPU

    def on_two_devices(*arguments):
        found = unscale(*arguments)
        return found | {second: found[learner.comm.device]}

    monkeypatch.setattr(learner.scaler, "_unscale_grads_", on_two_devices)
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    take_step(learner, 1, overflow=True)
    assert all(map(torch.equal, before, learner.model.parameters()))
    take_step(learner, 2)
    learner.require_finite()
    assert not any(map(torch.equal, before, learner.model.parameters()))


def test_each_step_starts_with_empty_gradients():
    learner = learner_of(optim={"optimizer": "sgd", "momentum": 0.0, "lr": 1e-300})
    first = gradients_of(learner, batches_of())
    learner.step()
    assert torch.equal(gradients_of(learner, batches_of()), first)


@pytest.mark.parametrize("version", [1, 2])
def test_dropout_depends_only_on_seed_rank_and_step(version):
    def gradient(step, *, seed=0, rank=0):
        torch.manual_seed(99)
        learner = learner_of(arch="mnist-cnn", rank=rank, size=2, train={"seed": 0})
        learner._seed = seed
        learner.use_randomness(version)
        torch.rand(7)  # what other code between them may draw
        start(learner, step)
        return gradients_of(learner, batches_of(count=4))

    reference = gradient(3)
    assert torch.equal(gradient(3), reference)
    for other in (gradient(4), gradient(3, seed=1), gradient(3, rank=1)):
        assert not torch.equal(other, reference)


def test_learning_rate_depends_only_on_step_number():
    learner = learner_of(optim={"optimizer": "sgd", "schedule": "step", "gamma": 0.5, "lr": 0.8})
    seen = []
    for step in (0, 3, 4, 11, 1):
        start(learner, step)
        seen.append(learner.optimizer.param_groups[0]["lr"])
    assert seen == [0.8, 0.8, 0.4, 0.2, 0.8]


def test_initial_weights_depend_on_seed():
    first, again, other = (learner_of(train={"seed": seed}).model.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not torch.equal(first["1.weight"], other["1.weight"])


def test_moving_average_of_weights_is_evaluated():
    learner = learner_of(ema_decay=0.75, optim={"lr": 0.1})
    weights = []
    for step in range(3):
        take_step(learner, step)
        weights.append(learner.model[1].weight.detach().clone())
    expected = weights[0]
    for weight in weights[1:]:
        expected = 0.75 * expected + 0.25 * weight
    assert learner.evaluated is not learner.model
    assert torch.allclose(learner.evaluated[1].weight, expected, rtol=1e-12)


def test_warm_up_leaves_model_unchanged():
    learner = learner_of(arch="resnet18", dtype="float32")
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    learner._warm_up(SHAPE, learner.model)
    assert all(torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())
    assert all(parameter.grad is None for parameter in learner.model.parameters())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_stop_run(value):
    learner = learner_of()
    learner.require_finite()
    with torch.no_grad():
        learner.model[3].bias[2] = value
    with refused("diverged", "--lr", "--clip-grad", "--amp"):
        learner.require_finite()


@pytest.mark.parametrize(("amp", "tolerance"), [("bf16", 0.1), ("fp16", 0.02)])
def test_mixed_precision_gradients_are_close_to_full_precision(amp, tolerance):
    full = gradients_of(learner_of(dtype="float32"), batches_of())
    mixed = learner_of(dtype="float32", train={"amp": amp})
    ours = gradients_of(mixed, batches_of(micro_steps=2)) / mixed.scaler.get_scale()
    assert (ours - full).norm() / full.norm() < tolerance
    assert not torch.equal(ours, full)


def test_channels_last_changes_layout_but_not_gradients():
    plain, other = (learner_of(arch="resnet18", channels_last=value) for value in (False, True))
    layouts = [
        learner.model.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
        for learner in (plain, other)
    ]
    assert layouts == [False, True]
    ours, theirs = (gradients_of(learner, batches_of()) for learner in (other, plain))
    assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-9)
