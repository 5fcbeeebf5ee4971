"""``session.load_best``: loads the best weights into the models, for a test at the end of a script."""

import json
from contextlib import suppress

import pytest
import torch
from torch import nn

from attempts import terminate
from messages import refused
from slipway import Session, Stopped
from slipway.run.status import read_status

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


class Script:
    """Adds 1 to a weight in each batch, two batches per epoch; the metric is best at weight 4."""

    def __init__(self, folder, **options):
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        options = {"best": "closeness", "keep": 1, **options}
        self.session = Session(model=self.model, optimizer=optimizer, folder=folder, **options)
        self.optimizer = optimizer

    @property
    def weight(self):
        return self.model.weight.item()

    def train(self, epochs=4, *, stop_at=None, leave_at=None):
        for epoch in self.session.epochs(epochs):
            for _ in self.session.batches([1, 2]):
                if self.session.step + 1 == stop_at:
                    terminate()
                self.optimizer.zero_grad()
                (-self.model(torch.ones(1, 1))).sum().backward()
                self.optimizer.step()
            self.session.metrics(closeness=-abs(4 - self.weight))
            if epoch == leave_at:
                break


def saved(folder):
    manifest = json.loads((folder / "checkpoints" / "latest" / "manifest.json").read_text())
    return manifest["position"]["step"], manifest["metric"]


def records_of_tests(folder):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record["test"] for record in records if "test" in record]


def finish(folder, **options):
    """Train in another attempt and test the best weights; return the last weight and the best one."""
    script = Script(folder)
    with script.session as session:
        script.train(**options)
        last = script.weight
        session.load_best()
        session.metrics(test=1.0)
    return last, script.weight


@pytest.mark.parametrize(
    ("options", "last"), [({}, 8), ({"epochs": 3, "leave_at": 2}, 6), ({"leave_at": 1}, 4)], ids=str
)
def test_load_best_restores_best_weights_and_run_keeps_last(options, last, tmp_path):
    script = Script(tmp_path)
    with script.session as session:
        script.train(**options)
        assert script.weight == last
        assert session.load_best() == 0
        assert script.weight == 4
        session.metrics(test=1.0)
        assert session.load_best() == 0
    assert read_status(tmp_path).verdict == f"done {last} complete"
    assert saved(tmp_path)[0] == last
    assert saved(tmp_path)[1]["value"] == 4 - last
    assert finish(tmp_path, **options) == (last, 4)
    assert records_of_tests(tmp_path) == [1.0]


def test_run_resumed_after_load_best_continues_from_last_weights(tmp_path):
    assert finish(tmp_path) == (8, 4)
    assert finish(tmp_path, epochs=5) == (10, 4)


def test_run_killed_after_load_best_resumes_with_training_complete(tmp_path):
    class Killed(BaseException):
        pass

    script = Script(tmp_path)
    with suppress(Killed), script.session as session:
        script.train(leave_at=2)
        session.load_best()
        raise Killed
    assert finish(tmp_path, leave_at=2) == (6, 4)
    assert records_of_tests(tmp_path) == [1.0]


def test_load_best_considers_checkpoints_of_all_attempts(tmp_path):
    script = Script(tmp_path)
    with pytest.raises(Stopped), script.session:
        script.train(stop_at=5)
    assert finish(tmp_path) == (8, 4)


@pytest.mark.parametrize(("checkpoint_steps", "best"), [(None, 6), (2, 4)])
def test_unsaved_steps_are_saved_before_load_best(checkpoint_steps, best, tmp_path):
    script = Script(tmp_path, checkpoint_steps=checkpoint_steps)
    with script.session as session:
        for step in session.steps(6):
            script.model.weight.grad = -torch.ones(1, 1)
            script.optimizer.step()
            if step == 3:
                session.metrics(closeness=1.0)
        session.load_best()
        assert script.weight == best
    assert saved(tmp_path)[0] == 6
    resumed = Script(tmp_path)
    with resumed.session as session:
        assert resumed.weight == 6
        assert list(session.steps(6)) == []


@pytest.mark.parametrize("options", [{}, {"best": None}])
def test_load_best_without_metric_is_refused(options, tmp_path):
    script = Script(tmp_path, **options)
    with refused("no-best-checkpoint", tmp_path, code=78), script.session as session:
        session.load_best()


def test_damaged_best_is_refused_and_next_best_used_once_moved(tmp_path):
    script = Script(tmp_path / "run", keep=9)
    checkpoints = tmp_path / "run" / "checkpoints"
    best, next_best = checkpoints / "step_00000004", checkpoints / "step_00000002"
    with refused("damaged-best", best, next_best, code=78), script.session as session:
        script.train()
        (best / "model.safetensors").write_bytes(b"damaged")
        session.load_best()
    best.rename(tmp_path / "elsewhere")
    assert finish(tmp_path / "run") == (8, 2)


@pytest.mark.parametrize("loop", ["epochs", "batches", "steps"])
def test_training_loop_after_load_best_is_refused(loop, tmp_path):
    script = Script(tmp_path)
    with refused("after-load-best"), script.session as session:
        script.train()
        session.load_best()
        for _ in getattr(session, loop)([1, 2] if loop == "batches" else 9):
            raise AssertionError


def test_continuing_loop_that_called_load_best_is_refused(tmp_path):
    script = Script(tmp_path)
    with refused("after-load-best"), script.session as session:
        for _ in session.epochs(3):
            for _ in session.batches([1, 2]):
                script.model.weight.grad = -torch.ones(1, 1)
                script.optimizer.step()
            session.metrics(closeness=1.0)
            session.load_best()


def test_load_best_restores_each_of_several_models(tmp_path):
    models = {"a": nn.Linear(1, 1), "b": nn.Linear(2, 2)}
    optimizer = torch.optim.SGD([each for model in models.values() for each in model.parameters()], lr=1.0)
    expected = None
    with Session(model=models, optimizer=optimizer, folder=tmp_path, best="x") as session:
        for epoch in session.epochs(3):
            for _ in session.batches([1]):
                sum(each.sum() for model in models.values() for each in model.parameters()).backward()
                optimizer.step()
            if epoch == 1:
                expected = {name: {k: v.clone() for k, v in each.state_dict().items()} for name, each in models.items()}
            session.metrics(x=float(epoch == 1))
        session.load_best()
    for name, model in models.items():
        assert all(torch.equal(value, expected[name][key]) for key, value in model.state_dict().items())
