"""State of optimizers that a session does not save: refused when it opens, or named at a save."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

from attempts import Attempt
from messages import assert_warning, refused, slugs
from slipway import Session

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


def train(attempt, body, **options):
    """Train four steps, each saved."""
    with attempt.open(**{"checkpoint_steps": 1, **options}) as session:
        for number in session.steps(4):
            body(number)


def closure_of(attempt, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = attempt.model(torch.ones(1, 2)).square().mean()
        loss.backward()
        return loss

    return closure


class Sharp(torch.optim.Optimizer):
    """Lets another optimizer take its steps, as SAM does; its state_dict holds only its own state."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.01, **options)
        self.param_groups = self.base.param_groups

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        self.base.step()
        return loss


class Shared(Sharp):
    """Shares its state with the inner optimizer."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.state = self.base.state


class Slow(Sharp):
    """Its state_dict includes the inner optimizer's, as Lookahead's does."""

    def state_dict(self):
        return {"slow": {}, "fast": self.base.state_dict()}

    def load_state_dict(self, state_dict):
        self.base.load_state_dict(state_dict["fast"])


class TestUnsavedOptimizers:
    @pytest.mark.parametrize(
        ("kind", "options", "given", "named"),
        [
            (Sharp, {"momentum": 0.5}, ["outer"], ["SGD", "within optimizer.outer"]),
            (Sharp, {"momentum": 0.5}, ["base"], ["Sharp"]),
            (Sharp, {"momentum": 0.5}, ["outer", "base"], []),
            (Sharp, {}, ["outer"], []),
            (Shared, {"momentum": 0.5}, ["outer"], []),
            (Slow, {"momentum": 0.5}, ["outer"], []),
        ],
        ids=["inner", "wrapper", "both", "stateless", "shared", "nested"],
    )
    def test_nested_optimizer_with_unsaved_state_is_reported(self, kind, options, given, named, *, tmp_path, caplog):
        attempt = Attempt(tmp_path)
        outer = kind(attempt.model.parameters(), **options)
        optimizers = {name: optimizer for name, optimizer in (("outer", outer), ("base", outer.base)) if name in given}
        train(attempt, lambda _: outer.step(closure_of(attempt, outer)), optimizer=optimizers)
        assert slugs(caplog.text).count("optimizer-not-given") == bool(named)
        if named:
            assert_warning(caplog.text, "optimizer-not-given", *named)

    def test_second_optimizer_is_reported_at_first_save(self, tmp_path, caplog):
        attempt = Attempt(tmp_path)

        def body(number):
            attempt.backward(number)
            attempt.first.step()
            attempt.second.step()
            if number == 1:
                assert_warning(caplog.text, "optimizer-not-given", "SGD", "optimizer")

        train(attempt, body, optimizer=attempt.first)
        assert slugs(caplog.text).count("optimizer-not-given") == 1

    @pytest.mark.parametrize("scheduled", [False, True])
    def test_inner_loop_optimizers_are_not_reported(self, scheduled, tmp_path, caplog):
        attempt = Attempt(tmp_path)

        def body(number):
            learner = copy.deepcopy(attempt.model)
            inner = torch.optim.Adam(learner.parameters())
            scheduler = torch.optim.lr_scheduler.ConstantLR(inner) if scheduled else inner
            for _ in range(3):
                learner(torch.ones(1, 2)).sum().backward()
                inner.step()
                scheduler.step()
            attempt.update(number)

        train(attempt, body)
        assert "optimizer-not-given" not in slugs(caplog.text)

    def test_optimizer_hook_is_removed_when_session_closes(self, tmp_path):
        hooks = _global_optimizer_post_hooks
        before = len(hooks)
        with Attempt(tmp_path).open():
            assert len(hooks) == before + 1
        assert len(hooks) == before


class TestUnsavedParameters:
    def test_optimized_parameters_of_unsaved_module_are_refused(self, tmp_path):
        model, criterion = nn.Linear(2, 2), nn.Linear(3, 1)
        optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
        with refused("parameters-not-given", "optimizer", 2, [1, 3]):
            Session(model=model, optimizer=optimizer, folder=tmp_path)
        Session(model={"net": model, "criterion": criterion}, optimizer=optimizer, folder=tmp_path)
        Session(model=model, extra=criterion, optimizer=optimizer, folder=tmp_path)

    def test_optimized_unsaved_tensor_is_refused(self, tmp_path):
        model, temperature = nn.Linear(2, 2), torch.zeros((), requires_grad=True)
        optimizers = {
            "model": torch.optim.SGD(model.parameters(), lr=0.1),
            "temperature": torch.optim.SGD([temperature], lr=0.1),
        }
        with refused("parameters-not-given", "optimizer.temperature", "ParameterList"):
            Session(model=model, optimizer=optimizers, folder=tmp_path)
        models = {"model": model, "temperature": nn.ParameterList([temperature])}

        def run():
            with Session(model=models, optimizer=optimizers, folder=tmp_path) as session:
                for _ in session.steps(2):
                    (temperature - 1).square().backward()
                    for optimizer in optimizers.values():
                        optimizer.step()
                return temperature.item()

        expected = run()
        with torch.no_grad():
            temperature.zero_()
        assert run() == expected != 0

    def test_parameters_of_compiled_and_wrapped_model_are_accepted(self, tmp_path):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Session(model=torch.compile(model, backend="eager"), optimizer=optimizer, folder=tmp_path)
        Session(model=nn.DataParallel(model), optimizer=optimizer, folder=tmp_path)
