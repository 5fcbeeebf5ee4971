"""Learning rate as a function of the position; optimizers compared with plain torch."""

import math

import pytest
import torch
from torch import nn

from messages import refused
from trainer.config.settings import OptimConfig
from trainer.model.small import MLP
from trainer.optim.amp import gradient_scaler
from trainer.optim.optimizers import OPTIMIZERS, LearningRate, build_optimizer, set_learning_rate

STEPS, EPOCHS = 10, 5
"""Optimizer steps per epoch, and epochs, of all schedules below."""


def rates(world_size=1, **optim):
    """Return the learning rate of each step."""
    plan = LearningRate(OptimConfig(lr=0.4, **optim), epochs=EPOCHS, world_size=world_size)
    return [plan.at(step / STEPS, (step + 1) / STEPS) for step in range(STEPS * EPOCHS)]


class TestSchedules:
    def test_constant_schedule_keeps_peak_rate(self):
        assert rates(schedule="constant") == [0.4] * 50

    @pytest.mark.parametrize("step_epochs", [1, 2, 3])
    def test_step_schedule_multiplies_by_gamma_every_step_epochs(self, step_epochs):
        expected = [0.4 * 0.7 ** (step // (STEPS * step_epochs)) for step in range(50)]
        assert rates(schedule="step", gamma=0.7, step_epochs=step_epochs) == pytest.approx(expected, rel=1e-12)

    def test_cosine_schedule_matches_torch_formula(self):
        """Compared with the formula of torch's CosineAnnealingLR."""
        expected = [0.2 * (1 + math.cos(math.pi * step / 50)) for step in range(50)]
        assert rates(schedule="cosine") == pytest.approx(expected, rel=1e-12)
        assert expected[0] == 0.4
        assert 0 < expected[-1] < 0.4 / 500

    @pytest.mark.parametrize("schedule", ["constant", "step", "cosine"])
    @pytest.mark.parametrize(("warmup_epochs", "warmup"), [(1.0, 10), (0.5, 5), (2.0, 20)])
    def test_warmup_rises_linearly_to_peak(self, schedule, warmup_epochs, warmup):
        rising = rates(schedule=schedule, warmup_epochs=warmup_epochs)[:warmup]
        assert rising == pytest.approx([0.4 * (step + 1) / warmup for step in range(warmup)], rel=1e-12)

    def test_cosine_covers_steps_after_warmup(self):
        after = rates(schedule="cosine", warmup_epochs=1.0)[10:]
        expected = [0.2 * (1 + math.cos(math.pi * step / 40)) for step in range(40)]
        assert after == pytest.approx(expected, rel=1e-12)

    def test_warmup_longer_than_run_stays_linear(self):
        assert rates(schedule="cosine", warmup_epochs=10.0) == pytest.approx(
            [0.4 * (step + 1) / 100 for step in range(50)]
        )

    def test_rate_after_planned_end_keeps_last_value(self):
        plan = LearningRate(OptimConfig(schedule="cosine"), epochs=EPOCHS, world_size=1)
        assert plan.at(5, 5.1) == plan.at(100, 100.1) == 0

    def test_schedule_does_not_depend_on_batch_size(self):
        plan = LearningRate(OptimConfig(lr=0.4, schedule="cosine"), epochs=EPOCHS, world_size=1)
        assert plan.at(2.0, 2.5) == plan.at(2.0, 2.001)

    @pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 9), ("sqrt", 3)])
    def test_rate_scales_with_world_size_by_lr_scaling(self, scaling, factor):
        alone, together = rates(lr_scaling=scaling), rates(lr_scaling=scaling, world_size=9)
        assert together == pytest.approx([factor * rate for rate in alone], rel=1e-12)


PLAIN = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.8, weight_decay=0.01),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=0.1, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.01),
}


class TestOptimizers:
    @pytest.mark.parametrize("name", sorted(OPTIMIZERS))
    def test_each_optimizer_matches_plain_torch(self, name):
        ours, theirs = self.trained(name, plain=False), self.trained(name, plain=True)
        start = self.model().state_dict()
        for key, value in ours.items():
            assert torch.allclose(value, theirs[key], rtol=1e-10, atol=1e-12), key
            assert not torch.allclose(value, start[key], rtol=1e-3, atol=0), f"{key} has not changed"

    @staticmethod
    def model():
        torch.manual_seed(0)
        return MLP((1, 4, 4), 3).double()

    def trained(self, name, *, plain):
        model = self.model()
        config = OptimConfig(optimizer=name, lr=0.1, momentum=0.8, weight_decay=0.01)
        optimizer = PLAIN[name](model.parameters()) if plain else build_optimizer(config, model.parameters())
        images, labels = torch.randn(8, 1, 4, 4).double(), torch.arange(8) % 3
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return model.state_dict()

    def test_decay_norm_bias_false_excludes_norms_and_biases(self):
        config = OptimConfig(optimizer="adamw", lr=0.1, weight_decay=0.5, decay_norm_bias=False)
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double()
        before = {name: value.clone() for name, value in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        build_optimizer(config, model.parameters()).step()
        for name, value in model.named_parameters():
            assert torch.allclose(value, before[name] * (0.95 if name == "0.weight" else 1)), name

    def test_rate_set_before_step_is_used_by_step(self):
        parameter = nn.Parameter(torch.zeros(1))
        optimizer = build_optimizer(OptimConfig(optimizer="sgd", lr=1.0, momentum=0.0), [parameter])
        set_learning_rate(optimizer, 0.25)
        parameter.grad = torch.ones(1)
        optimizer.step()
        assert parameter.item() == -0.25

    def test_unknown_optimizer_is_refused_and_nearest_suggested(self):
        with refused("unknown-name", "'adamm'", "'adam'"):
            build_optimizer(OptimConfig(optimizer="adamm"), [])


@pytest.mark.parametrize(("amp", "scales"), [("none", False), ("bf16", False), ("fp16", True)])
def test_only_fp16_enables_loss_scaling(amp, scales):
    assert gradient_scaler(torch.device("cpu"), amp).is_enabled() == scales
