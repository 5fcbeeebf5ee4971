"""Objects that a script changes but does not pass to the session: warnings name them before they matter."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

from attempts import Attempt, terminate, whole_and_stopped
from messages import refused, slugs
from slipway import Session, Stopped
from slipway.rng.loader_generators import reachable

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


class Centered(nn.Module):
    """A loss with a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(1))

    def forward(self, outputs):
        self.center.lerp_(outputs.detach().mean(0), 0.1)
        return (outputs - self.center).square().mean()


class Warm(nn.Module):
    """A loss that counts its calls, or keeps other values, in an attribute set by the first call."""

    calls = 0

    def __init__(self, name="calls", value=lambda calls, _: calls):
        super().__init__()
        self.inner = nn.MSELoss()
        self.change = lambda outputs: setattr(self, name, value(self.calls + 1, outputs))

    def forward(self, outputs):
        self.change(outputs)
        return self.inner(outputs, torch.zeros_like(outputs))


def lerp_data(average, model):
    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
        kept.data.mul_(0.9).add_(new.data, alpha=0.1)


OTHERS = {
    "average": (AveragedModel, lambda other, model: other.update_parameters(model)),
    "average by .data": (copy.deepcopy, lerp_data),
    "target": (copy.deepcopy, lambda other, model: other.load_state_dict(model.state_dict())),
    "counter": (lambda _: Warm(), lambda other, model: other(model(torch.ones(1, 2)))),
    "history": (
        lambda _: Warm("history", lambda _, outputs: [*range(500), outputs.item()]),
        lambda other, model: other(model(torch.ones(1, 2))),
    ),
    "setting": (lambda _: nn.Dropout(0.5), lambda other, _: setattr(other, "p", 0.25)),
    "loss": (lambda _: Centered(), lambda other, model: other(model(torch.ones(1, 2)))),
}


def train(attempt, after_each=lambda: None, *, epochs=1, before_each=lambda _: None, **options):
    """Train two batches per epoch; call ``before_each`` epoch and ``after_each`` update."""
    with attempt.open(checkpoint_steps=1, **options) as session:
        for epoch in session.epochs(epochs):
            before_each(epoch)
            for _ in session.batches(range(2)):
                attempt.update()
                after_each()


class TestModules:
    @pytest.mark.parametrize("kind", OTHERS)
    @pytest.mark.parametrize("given", [None, "model", "extra"])
    def test_changing_module_not_passed_to_session_is_reported(self, kind, given, tmp_path, caplog):
        make, update = OTHERS[kind]
        attempt = Attempt(tmp_path)
        other = make(attempt.model)
        options = {"model": {"model": {"model": attempt.model, "other": other}}, "extra": {"extra": other}, None: {}}
        train(attempt, lambda: update(other, attempt.model), **options[given])
        assert slugs(caplog.text).count("module-not-given") == (given is None)

    def test_unchanged_modules_and_model_parts_are_not_reported(self, tmp_path, caplog):
        attempt = Attempt(tmp_path)
        teacher, anchors = copy.deepcopy(attempt.model), []
        parts = [attempt.model[0], nn.Sequential(attempt.model[0])]

        def use():
            teacher(torch.ones(1, 2))
            anchors[-1].load_state_dict(attempt.model.state_dict())

        train(attempt, use, before_each=lambda _: anchors.append(copy.deepcopy(attempt.model)), epochs=2)
        assert not slugs(caplog.text)
        assert parts

    def test_loss_results_modes_and_library_attributes_are_not_reported(self, tmp_path, caplog):
        class Cached(Warm):
            __module__ = "pytest"

        attempt = Attempt(tmp_path)
        losses = [Warm("last", lambda _, outputs: outputs), Warm("tool", lambda *_: Warm), Cached()]

        def use():
            for loss in losses:
                loss(attempt.model(torch.ones(1, 2)))
            losses[0].eval()

        train(attempt, use)
        assert not slugs(caplog.text)

    def test_modules_with_unusual_tensor_types_are_inspected(self, tmp_path, caplog):
        class Lazy:
            def __getattr__(self, name):
                raise RuntimeError(name)

        others = [
            nn.Linear(2, 2, device="meta"),
            nn.LazyLinear(2),
            torch.jit.script(nn.Linear(2, 2)),
            torch.ao.nn.quantized.Linear(2, 2),
            Lazy(),
        ]
        others[0].register_buffer("sparse", torch.eye(3).to_sparse())
        others[0].register_buffer("quantized", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
        train(Attempt(tmp_path))
        assert not slugs(caplog.text)
        assert others


class Halving:
    """A scheduler of the script."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0

    def step(self):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


SCHEDULERS = [
    lr_scheduler.ReduceLROnPlateau,
    Halving,
    lambda optimizer: lr_scheduler.StepLR(optimizer, 1),
    lambda optimizer: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(optimizer)], optimizer=optimizer),
]


class TestSchedulers:
    @pytest.mark.parametrize("make", SCHEDULERS)
    @pytest.mark.parametrize("given", [None, "scheduler", "extra"])
    def test_scheduler_not_passed_to_session_is_reported_once(self, make, given, tmp_path, caplog):
        attempt = Attempt(tmp_path)
        scheduler = make(attempt.both)
        of_another = make(attempt.first)
        train(attempt, epochs=2, **({given: scheduler} if given else {}))
        assert slugs(caplog.text) == ([] if given else ["scheduler-not-given"])
        assert of_another

    def test_second_scheduler_not_passed_to_session_is_reported(self, tmp_path, caplog):
        attempt = Attempt(tmp_path)
        plateau = lr_scheduler.ReduceLROnPlateau(attempt.both)
        train(attempt, scheduler=lr_scheduler.StepLR(attempt.both, 1))
        assert slugs(caplog.text) == ["scheduler-not-given"]
        assert plateau

    def test_scheduler_replaced_in_epoch_is_reported(self, tmp_path, caplog):
        attempt = Attempt(tmp_path)
        schedulers = [lr_scheduler.StepLR(attempt.both, 1)]

        def replace(epoch):
            if epoch == 1:
                assert not slugs(caplog.text)
                schedulers.append(lr_scheduler.StepLR(attempt.both, 1))

        def step():
            schedulers[-1].step()

        train(attempt, step, before_each=replace, epochs=3, scheduler=schedulers[0])
        assert slugs(caplog.text) == ["scheduler-not-given"]

    def test_object_holding_optimizer_and_model_is_not_scheduler(self, tmp_path, caplog):
        attempt = Attempt(tmp_path)
        trainer = Halving(attempt.both)
        trainer.model = attempt.model
        train(attempt)
        assert not slugs(caplog.text)


class TestEarlyUse:
    @staticmethod
    def script(attempt, part=lambda model: model, *, only_at_first=False):
        with attempt.open() as session:
            for _ in session.epochs(2):
                if not (only_at_first and session.batch):
                    part(attempt.model)(torch.ones(1, 2))
                for number in session.batches(range(4)):
                    attempt.update(number)
                part(attempt.model)(torch.ones(1, 2))

    @pytest.mark.parametrize(
        ("stop_at", "options", "count"),
        [
            (2, {}, 1),
            (6, {}, 1),
            (4, {}, 0),
            (2, {"part": lambda model: model[0]}, 1),
            (2, {"only_at_first": True}, 0),
        ],
    )
    def test_model_call_before_batches_of_resumed_epoch_is_reported(self, stop_at, options, count, tmp_path, caplog):
        with pytest.raises(Stopped):
            self.script(Attempt(tmp_path, stop_at), **options)
        assert not slugs(caplog.text)
        self.script(attempt := Attempt(tmp_path), **options)
        assert slugs(caplog.text).count("model-before-batches") == count
        assert not any(module._forward_pre_hooks for module in attempt.model.modules())

    def test_torchscript_model_resumes_exactly(self, tmp_path):
        def script(attempt):
            attempt.model = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
            attempt.both = torch.optim.SGD(attempt.model.parameters(), lr=0.1)
            self.script(attempt)
            return [parameter.tolist() for parameter in attempt.model.parameters()]

        whole_and_stopped(tmp_path, script, 2, 3)


class TestFolds:
    """Models that are created between two sessions of a process."""

    @staticmethod
    def folds(folder, *, stop_in=None):
        torch.manual_seed(0)
        found = []
        for fold in range(3):
            model = nn.Linear(2, 1)
            found.append([model.weight.tolist(), torch.rand(1).item()])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with Session(model=model, optimizer=optimizer, folder=folder / f"fold{fold}") as session:
                for _ in session.epochs(2):
                    for _ in session.batches(range(2)):
                        (model(torch.rand(1, 2)) + torch.rand(1)).square().mean().backward()
                        optimizer.step()
                        optimizer.zero_grad()
                        if fold == stop_in:
                            terminate()
                    if fold == 1:
                        break
                found.append(torch.rand(1).item())
            found.append([model.weight.tolist(), torch.rand(1).item()])
        return found

    @pytest.mark.parametrize("stop_in", [1, 2])
    def test_folds_are_unchanged_if_earlier_folds_are_complete(self, stop_in, tmp_path):
        whole = self.folds(tmp_path / "whole")
        with pytest.raises(Stopped):
            self.folds(tmp_path / "run", stop_in=stop_in)
        assert self.folds(tmp_path / "run") == whole
        assert self.folds(tmp_path / "whole") == whole


def test_session_without_main_script_requires_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr("__main__.__file__", raising=False)
    with refused("session-arguments", "folder"):
        Attempt(None).open().__enter__()
    assert not [*tmp_path.iterdir()]


def test_search_reads_only_stored_items_of_a_mapping():
    """The mappings of transformers import a module for each value that they return."""

    class Lazy(dict):
        def values(self):
            raise AssertionError

    stored = nn.Linear(1, 1)
    assert any(found is stored for found in reachable([Lazy(layer=stored)]))
