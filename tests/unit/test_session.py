"""A session in this process: its guarantees to a script, and its errors on wrong use."""

import os
import random
import signal
import threading
import types
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import slipway
from attempts import Attempt, in_session, terminate, whole_and_stopped
from messages import refused, slugs
from session_runs import records, saved_step
from slipway import Session, SessionError, Stopped
from slipway.checkpoint.format import Checkpoint, read_checkpoint, write_checkpoint
from slipway.checks.skipped_steps import warn_of_skipping
from slipway.run.status import read_status
from support import file_size_limit

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


def loader():
    """Return a loader of twelve samples, four per batch."""
    return DataLoader(range(12), 4, shuffle=True)


def train(attempt, epochs=2, *, batches=None, **options):
    """Train on ``batches``, log the losses, and return the final state of the run."""
    with attempt.open(log_interval=2, **options) as session:
        for _ in session.epochs(epochs):
            for batch in session.batches(batches or loader()):
                session.log(loss=attempt.update(batch))
        return attempt.result(session)


def draw():
    """Draw from each global generator, including the numbers of which a generator caches a second one."""
    return (
        random.random(),
        random.gauss(),
        np.random.rand(),
        np.random.randn(),
        torch.rand(1).item(),
        torch.randn(1).item(),
    )


def best_step(folder):
    return int((folder / "checkpoints" / "best").resolve().name.removeprefix("step_"))


def test_unknown_package_attribute_raises_attribute_error():
    assert {*slipway.__all__} <= {*dir(slipway), *slipway.HOME}
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        slipway.Nonsense  # noqa: B018 -- the look-up is the test


def test_completed_run_leaves_checkpoint_metrics_and_verdict(tmp_path):
    train(Attempt(tmp_path))
    assert read_status(tmp_path).verdict == "done 6 complete"
    assert [(record["step"], record["epoch"]) for record in records(tmp_path)] == [(2, 2 / 3), (4, 4 / 3), (6, 2.0)]
    assert saved_step(tmp_path) == 6


def test_mean_squared_error_is_minimized_as_in_plain_torch(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(64, 8)
    batches = [*zip(inputs.split(16), inputs.sum(1, keepdim=True).split(16), strict=True)]
    models = [nn.Linear(8, 1) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]

    def step(number, batch, target):
        loss = nn.functional.mse_loss(models[number](batch), target)
        optimizers[number].zero_grad()
        loss.backward()
        optimizers[number].step()
        return loss.item()

    plain = [step(0, *batch) for _ in range(20) for batch in batches]
    with Session(model=models[1], optimizer=optimizers[1], folder=tmp_path / "run") as session:
        found = [step(1, *batch) for _ in session.epochs(20) for batch in session.batches(batches)]
    assert found == plain
    assert found[-1] < found[0] / 1000


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 5])
def test_stopped_run_resumes_exactly(stop_at, tmp_path):
    seen = whole_and_stopped(tmp_path, train, stop_at)
    assert len(seen[0]) == stop_at
    assert records(tmp_path / "parts") == records(tmp_path / "whole")


def test_signal_stops_attempt_with_exit_code_75_and_verdict(tmp_path):
    with pytest.raises(Stopped) as stopped:
        train(Attempt(tmp_path, stop_at=3))
    assert (stopped.value.code, stopped.value.reason.word) == (75, "signal")
    assert read_status(tmp_path).verdict == "stopped 3 signal"


def test_completed_run_trains_only_added_epochs(tmp_path):
    for epochs, count in ((2, 6), (2, 0), (3, 3)):
        train(attempt := Attempt(tmp_path), epochs)
        assert len(attempt.seen) == count


@pytest.mark.parametrize(
    ("other", "values"),
    [(DataLoader(range(11), 4), [11, 12]), (DataLoader(range(12), 6), [2, 3])],
    ids=["samples", "batches"],
)
def test_changed_number_of_samples_or_batches_is_refused(other, values, tmp_path):
    with pytest.raises(Stopped):
        train(Attempt(tmp_path, stop_at=1))
    with refused("different-data", *values):
        train(Attempt(tmp_path), batches=other)
    assert read_status(tmp_path).state == "failed"
    train(Attempt(tmp_path))


def test_changed_learning_rate_is_logged(tmp_path, caplog):
    with pytest.raises(Stopped):
        train(Attempt(tmp_path, stop_at=1))
    changed = Attempt(tmp_path)
    changed.both.param_groups[0]["lr"] = 0.5
    with caplog.at_level("INFO"):
        train(changed)
    assert ("optimizer", "lr", 0.01, 0.5) in [record.args for record in caplog.records]


def test_each_epoch_has_different_order_of_all_samples(tmp_path):
    train(attempt := Attempt(tmp_path))
    first, second = attempt.seen[:3], attempt.seen[3:]
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(12))


def test_global_generators_depend_only_on_position(tmp_path):
    drawn = []
    for seed in range(2):
        attempt = Attempt(tmp_path / str(seed))
        random.seed(seed)
        with attempt.open() as session:
            for _ in session.epochs(1):
                drawn.append(draw())
                for batch in session.batches(loader()):
                    drawn.append(draw())
                    attempt.update(batch)
                drawn.append(draw())
    assert drawn[:5] == drawn[5:]
    assert len({*drawn}) == 5


def test_resumed_steps_draw_same_numbers_as_uninterrupted_run(tmp_path):
    @in_session()
    def script(attempt, session):
        for _ in session.steps(6):
            attempt.update(torch.rand(4))
            attempt.seen.append(draw())

    whole_and_stopped(tmp_path, script, 2, 3)


def test_sigusr1_stops_run_with_verdict_out_of_time(tmp_path):
    attempt = Attempt(tmp_path)
    with pytest.raises(Stopped), attempt.open() as session:
        for step in session.steps(6):
            attempt.update()
            if step == 2:
                os.kill(os.getpid(), signal.SIGUSR1)
    assert read_status(tmp_path).verdict == "out-of-time 3 time-limit"


def test_several_optimizers_in_one_batch_count_as_one_step(tmp_path):
    models = {"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)}
    optimizers = {name: torch.optim.Adam(model.parameters()) for name, model in models.items()}
    with Session(model=models, optimizer=optimizers, folder=tmp_path) as session:
        for value in session.batches([1.0, 2.0, 3.0]):
            for name, model in models.items():
                model(torch.tensor([value])).backward()
                optimizers[name].step()
    assert session.step == 3
    files = {path.name for path in (tmp_path / "checkpoints" / "latest").iterdir()}
    assert {"model.a.safetensors", "optimizer.b.safetensors"} <= files


def test_optimizer_subclass_calling_super_counts_one_step(tmp_path):
    class Careful(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    attempt = Attempt(tmp_path)
    attempt.both = Careful(attempt.model.parameters(), lr=0.1)
    assert train(attempt, epochs=1)[0] == 3
    assert "step" not in vars(attempt.both)


def test_scheduler_may_be_created_inside_session(tmp_path):
    attempt = Attempt(tmp_path)
    with attempt.open() as session:
        scheduler = torch.optim.lr_scheduler.StepLR(attempt.both, 1)
        for _ in session.epochs(1):
            for batch in session.batches(loader()):
                attempt.update(batch)
            scheduler.step()
    assert session.step == 3
    assert attempt.both.param_groups[0]["lr"] == pytest.approx(0.001)


def test_stop_during_validation_waits_for_its_end(tmp_path):
    attempt = Attempt(tmp_path)
    with pytest.raises(Stopped), attempt.open(best="accuracy") as session:
        for _ in session.epochs(2):
            for batch in session.batches(loader()):
                attempt.update(batch)
            terminate()
            session.metrics(accuracy=0.5)
    assert session.epoch == 1
    assert records(tmp_path)[-1]["accuracy"] == 0.5
    assert best_step(tmp_path) == 3


def test_stop_in_last_batch_saves_before_and_stops_after_validation(tmp_path):
    """A script that was resumed after its last batch would have no loss to print."""

    @in_session(best="accuracy")
    def script(attempt, session):
        for epoch in session.epochs(2):
            for batch in session.batches(loader()):
                attempt.update(batch)
            if attempt.stop_at:
                session._opened.recorder.on_root.wait()
                assert saved_step(attempt.folder) == 3
            attempt.seen.append(f"validation {epoch}")
            session.metrics(accuracy=epoch)

    stopped, resumed = whole_and_stopped(tmp_path, script, 3)
    assert (len(stopped), stopped[-1], len(resumed)) == (4, "validation 0", 4)
    validations = [record for record in records(tmp_path / "parts") if record["kind"] == "validation"]
    assert [record["accuracy"] for record in validations] == [0, 1]


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4])
def test_epoch_with_several_passes_resumes_exactly(stop_at, tmp_path):
    @in_session()
    def script(attempt, session):
        for _ in session.epochs(1):
            for batches in (loader(), DataLoader(range(12), 6)):
                for batch in session.batches(batches):
                    attempt.update(batch)

    seen = whole_and_stopped(tmp_path, script, stop_at)
    stopped_at = 4 if stop_at == 3 else stop_at  # not after the last batch of a pass
    assert [*map(len, seen)] == [stopped_at, 5 - stopped_at]


def test_full_disk_does_not_end_training(tmp_path, caplog):
    attempt = Attempt(tmp_path)
    attempt.model.register_buffer("large", torch.zeros(20_000))
    with attempt.open(checkpoint_steps=1) as session:
        for step in session.steps(4):
            attempt.update()
            if step == 0:
                limit = file_size_limit(40_000)
                limit.__enter__()
            if step == 2:
                session._opened.recorder.on_root.wait()
                limit.__exit__(None, None, None)
    assert "checkpoint-not-written" in slugs(caplog.text)
    assert read_status(tmp_path).verdict == "done 4 complete"


@pytest.mark.parametrize(
    ("arguments", "slug", "values"),
    [
        ({}, "session-arguments", ["model=", "optimizer="]),
        ({"model": 3}, "no-state-dict", ["model", "int", "load_state_dict"]),
        ({"model": {"a/b": nn.Linear(1, 1)}}, "bad-name", ["model", "'a/b'"]),
        ({"model": nn.Linear(1, 1), "log_interval": 0}, "session-arguments", ["log_interval=0"]),
    ],
    ids=["nothing to save", "no state", "name", "interval"],
)
def test_invalid_session_arguments_are_refused(arguments, slug, values, tmp_path):
    with refused(slug, *values):
        Session(**arguments, folder=tmp_path)
    assert not any(tmp_path.iterdir())


def test_second_open_session_is_refused(tmp_path):
    with Attempt(tmp_path / "a").open(), refused("session-not-open"):
        Attempt(tmp_path / "b").open().__enter__()
    train(Attempt(tmp_path / "b"))


def test_session_in_thread_is_refused(tmp_path):
    caught = []

    def run():
        try:
            train(Attempt(tmp_path))
        except SessionError as error:
            caught.append(error.slug)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert caught == ["session-thread"]


@pytest.mark.parametrize(
    ("change", "slug", "values"),
    [
        ({"model": nn.Linear(2, 1)}, "different-state", ["model", "weight", "bias"]),
        (
            {"model": nn.Sequential(nn.Linear(2, 4), nn.Dropout(), nn.Linear(4, 1))},
            "different-state",
            ["0.weight", [2, 2], [4, 2]],
        ),
        ({"scheduler": nn.Linear(1, 1)}, "different-run", ["scheduler"]),
        ({"optimizer": None}, "different-run", ["optimizer"]),
        ({"optimizer": torch.optim.AdamW}, "different-state", ["optimizer", "dampening", "momentum"]),
        ({"seed": 1}, "different-run", ["seed", 0, 1]),
    ],
)
def test_changed_script_is_refused_before_any_write(change, slug, values, tmp_path):
    train(Attempt(tmp_path), epochs=1)
    before = (tmp_path / "status.json").read_bytes()
    attempt = Attempt(tmp_path)
    kind = change.get("optimizer", torch.optim.SGD)
    optimizer = kind and kind(change.get("model", attempt.model).parameters(), lr=0.01)
    with refused(slug, *values):
        attempt.open(**change | {"optimizer": optimizer}).__enter__()
    assert (tmp_path / "status.json").read_bytes() == before


def test_run_folder_of_trainer_is_refused(tmp_path):
    train(Attempt(tmp_path), epochs=1)
    newest = (tmp_path / "checkpoints" / "latest").resolve()
    found = read_checkpoint(newest)
    write_checkpoint(newest, Checkpoint(found.tensors, found.header._replace(facts={"seed": 0})))
    with refused("different-run", tmp_path):
        Attempt(tmp_path).open().__enter__()


def test_script_error_is_recorded_in_status(tmp_path):
    with pytest.raises(ZeroDivisionError) as error, Attempt(tmp_path).open() as session:
        for _ in session.steps(3):
            1 / 0  # noqa: B018
    assert read_status(tmp_path).reason == f"unexpected-error: {error.typename}: {error.value}"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class CountOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_session_step_adds_at_most_three_operators(tmp_path, monkeypatch):
    monkeypatch.setattr("slipway.run.agreement.VOTE_INTERVAL", 10)
    attempt = Attempt(tmp_path)

    def operators(steps, log):
        with CountOperators() as counted:
            for _ in steps:
                attempt.both.zero_grad()
                loss = attempt.model(torch.ones(1, 2)).square().mean()
                loss.backward()
                attempt.both.step()
                log(loss)
        return counted.count

    operators(range(1), print)  # the first step creates the optimizer's state
    bare = operators(range(200), lambda _: None)
    with attempt.open(checkpoint_minutes=None) as session:
        first, second = (operators(session.steps(end), lambda loss: session.log(loss=loss)) for end in (200, 400))
    assert bare < second <= bare + 200 * 3
    assert first > bare


def test_validation_as_pass_does_not_delay_best_checkpoint(tmp_path):
    attempt = Attempt(tmp_path)
    with attempt.open(best="accuracy") as session:
        for epoch in session.epochs(2):
            for batch in session.batches(loader()):
                attempt.update(batch)
            for _ in session.batches(loader()):
                pass
            session.metrics(accuracy=-epoch)
    assert best_step(tmp_path) == 3


def test_metrics_before_batches_are_recorded_once_after_resume(tmp_path):
    def script(attempt):
        with attempt.open() as session:
            for _ in session.epochs(2):
                session.metrics(accuracy=session.epoch)
                for batch in session.batches(loader()):
                    attempt.update(batch)

    whole_and_stopped(tmp_path, script, 2)
    validations = [record for record in records(tmp_path / "parts") if record["kind"] == "validation"]
    assert [(record["step"], record["accuracy"]) for record in validations] == [(0, 0), (3, 1)]


@pytest.mark.parametrize(("misuse", "slug"), [("zip", "two-passes"), ("hoisted", "batches-not-called")])
def test_zipped_or_hoisted_batches_are_refused(misuse, slug, tmp_path):
    attempt = Attempt(tmp_path)
    with refused(slug, *["session.batches(zip(a, b))"] * (misuse == "zip")), attempt.open() as session:
        hoisted = session.batches(loader())
        for _ in session.epochs(2):
            both = [session.batches(loader()) for _ in range(2)] if misuse == "zip" else [hoisted]
            for batch, *_ in zip(*both, strict=True):
                attempt.update(batch)


def test_reserved_metric_names_are_refused(tmp_path):
    with Attempt(tmp_path).open() as session:
        with refused("bad-name", "step"):
            session.log(step=1)
        with refused("bad-name", "epoch", "kind"):
            session.metrics(kind=1, epoch=2)


def test_step_skipped_by_optimizer_wrapper_does_not_count(tmp_path):
    class Wrapped:
        def __init__(self, optimizer):
            self.optimizer, self.allowed = optimizer, False

        def step(self):
            if self.allowed:
                self.optimizer.step()

        def __getattr__(self, name):
            return getattr(self.optimizer, name)

    attempt = Attempt(tmp_path)
    attempt.both = wrapped = Wrapped(attempt.both)
    with attempt.open() as session:
        for number in session.batches(range(3)):
            wrapped.allowed = number == 1
            attempt.update(number)
    assert session.step == 1


def test_failed_open_leaves_nothing_patched(tmp_path):
    get_iterator = DataLoader._get_iterator
    attempt = Attempt(tmp_path)
    with pytest.raises(AttributeError):
        attempt.open(scaler=nn.Linear(1, 1)).__enter__()
    assert "step" not in vars(attempt.both)
    assert DataLoader._get_iterator is get_iterator
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    train(attempt, epochs=1)


def test_loaders_of_finished_epochs_are_released(tmp_path):
    attempt = Attempt(tmp_path)
    with attempt.open() as session:
        for _ in session.epochs(3):
            for batch in session.batches(loader()):
                attempt.update(batch)
        assert len(session._feed._sources) <= 1


def test_stopped_exception_caught_by_script_still_stops_run(tmp_path):
    attempt = Attempt(tmp_path, stop_at=3)
    with pytest.raises(Stopped), attempt.open() as session:
        try:
            for _ in session.steps(5):
                attempt.update()
        except BaseException:  # noqa: BLE001, S110 -- as scripts do
            pass
    assert read_status(tmp_path).state == "stopped"


def test_loops_of_unopened_session_are_refused(tmp_path):
    with refused("session-not-open"):
        next(Attempt(tmp_path).open().epochs(1))


def test_loader_workers_end_when_run_stops(tmp_path):
    attempt = Attempt(tmp_path)
    with pytest.raises(Stopped), attempt.open() as session:
        for batch in session.batches(DataLoader(range(12), 1, num_workers=1)):
            attempt.update(batch)
            (worker,) = session._feed._skipping._iterator._workers
            terminate()
    assert not worker.is_alive()


MOMENTUM = {"lr": 0.1, "momentum": 0.9}


class TestFusedOptimizersUnderGradScaler:
    """tests/unit/test_fused_sgd.py shows what each of them computes after a skipped first step."""

    @staticmethod
    def warned(folder, caplog, optimizer, scaler):
        """Open a session, take a step, and return the names of the optimizers that the session warned about."""
        caplog.clear()
        model = nn.Linear(2, 1)
        optimizers = optimizer(model.parameters())
        with Session(model=model, optimizer=optimizers, scaler=scaler, folder=folder) as session:
            found = [record.args[0] for record in caplog.records if record.name == "slipway.checks.skipped_steps"]
            for _ in session.steps(session.step + 1):
                scaler.scale(model(torch.ones(3, 2)).sum()).backward()
                for each in optimizers.values():
                    scaler.step(each)
                scaler.update()
        return found

    @pytest.mark.parametrize(
        ("build", "enabled", "expected"),
        [
            (lambda p: torch.optim.SGD(p, **MOMENTUM, fused=True), True, ["optimizer.it"]),
            (lambda p: torch.optim.SGD(p, **MOMENTUM, fused=True), False, []),
            (lambda p: torch.optim.SGD(p, **MOMENTUM, foreach=True), True, []),
            (lambda p: torch.optim.SGD(p, **MOMENTUM), True, []),
            (lambda p: torch.optim.SGD(p, lr=0.1, fused=True), True, []),
            (lambda p: torch.optim.Adam(p, fused=True), True, []),
            (lambda p: torch.optim.AdamW(p, fused=True), True, []),
            (lambda p: torch.optim.Adagrad(p, fused=True), True, []),
        ],
    )
    def test_fused_sgd_with_momentum_is_reported(self, build, enabled, expected, tmp_path, caplog):
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        assert self.warned(tmp_path, caplog, lambda p: {"it": build(p)}, scaler) == expected

    def test_optimizer_with_momentum_state_is_not_reported(self, tmp_path, caplog):
        def both(parameters):
            weight, bias = parameters
            return {name: torch.optim.SGD([p], **MOMENTUM, fused=True) for name, p in (("w", weight), ("b", bias))}

        scaler = torch.amp.GradScaler("cpu")
        assert self.warned(tmp_path, caplog, both, scaler) == ["optimizer.w", "optimizer.b"]
        assert self.warned(tmp_path, caplog, both, scaler) == []

    @pytest.mark.parametrize(("arguments", "expected"), [({"fused": True}, ["wrapped"]), ({"foreach": True}, [])])
    def test_fused_optimizer_on_two_devices_is_reported(self, arguments, expected, caplog):
        parameters = [nn.Parameter(torch.ones(1, device=device)) for device in ("cpu", "meta")]
        wrapped = types.SimpleNamespace(optimizer=torch.optim.AdamW(parameters, **arguments))
        warn_of_skipping({"wrapped": wrapped}, [None, torch.amp.GradScaler("cpu")])
        assert [record.args[0] for record in caplog.records] == expected
