"""A session in this process: what it promises a script, and what it says to one that uses it as it cannot be used."""

import contextlib
import json
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
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import slipway
from messages import assert_warning, refused, slugs
from slipway import Session, SessionError, Stopped
from slipway.skipping import warn_of_skipping
from slipway.status import read_status
from support import file_size_limit


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    monkeypatch.setattr("slipway.agreement.VOTE_INTERVAL", 0)  # after each step, so that tests know where a run stops
    for name in ("RUN_DIR", "TRAINER_ATTEMPT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


class Script:
    """A training of one linear layer on 12 samples, 4 in a batch."""

    def __init__(self, folder, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loader = DataLoader(TensorDataset(torch.arange(24.0).view(12, 2) / 24), 4, shuffle=True)
        options = {"log_interval": 2, **options}
        self.session = Session(model=self.model, optimizer=self.optimizer, folder=folder, **options)
        self.seen = []

    def step(self, inputs):
        self.seen.append(inputs[:, 0].mul(12).round().int().tolist())
        self.optimizer.zero_grad()
        loss = self.model(inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.session.log(loss=loss)

    def run(self, epochs=2, *, stop_at=None):
        with self.session as session:
            for _ in session.epochs(epochs):
                for (inputs,) in session.batches(self.loader):
                    self.step(inputs)
                    if session.step + 1 == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
        return self


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_importing_the_package_loads_no_torch_until_a_name_is_used():
    assert {*slipway.__all__} <= {*dir(slipway), *slipway.HOME}
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        slipway.Nonsense  # noqa: B018 -- the look-up is the test


def test_a_run_that_is_done_leaves_checkpoints_metrics_and_a_verdict(tmp_path):
    Script(tmp_path / "run").run()
    assert read_status(tmp_path / "run").verdict == "done 6 complete"
    assert [(record["step"], record["epoch"]) for record in records(tmp_path / "run")] == [
        *((2, 2 / 3), (4, 4 / 3), (6, 2.0)),
    ]
    assert (tmp_path / "run" / "checkpoints" / "latest").resolve().name == "step_00000006"


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 5])
def test_a_run_that_is_stopped_goes_on_where_it_was(stop_at, tmp_path):
    whole = Script(tmp_path / "whole").run()
    first, second = Script(tmp_path / "run"), Script(tmp_path / "run")
    with pytest.raises(Stopped) as stopped:
        first.run(stop_at=stop_at)
    assert (stopped.value.code, stopped.value.reason.word) == (75, "signal")
    assert read_status(tmp_path / "run").verdict == f"stopped {stop_at} signal"
    second.run()
    assert first.seen + second.seen == whole.seen
    assert all(map(torch.equal, second.model.state_dict().values(), whole.model.state_dict().values()))
    times = ("elapsed", "steps_per_second")
    both = [[{k: v for k, v in r.items() if k not in times} for r in records(tmp_path / n)] for n in ("whole", "run")]
    assert both[0] == both[1]


def test_a_run_that_is_done_is_not_trained_again_unless_more_is_asked(tmp_path):
    Script(tmp_path).run()
    assert Script(tmp_path).run().seen == []
    assert len(Script(tmp_path).run(epochs=3).seen) == 3


def test_other_data_and_another_learning_rate_are_noticed(tmp_path, caplog):
    with pytest.raises(Stopped):
        Script(tmp_path).run(stop_at=1)
    longer = Script(tmp_path)
    longer.loader = DataLoader(TensorDataset(torch.zeros(11, 2)), 4, shuffle=True)  # three batches too
    with refused("different-data", 11, 12):
        longer.run()
    changed = Script(tmp_path)
    changed.optimizer.param_groups[0]["lr"] = 0.5
    with caplog.at_level("INFO"):
        changed.run()
    assert ("optimizer", "lr", 0.1, 0.5) in [record.args for record in caplog.records]


def test_every_epoch_has_an_order_and_draws_of_its_own(tmp_path):
    seen = Script(tmp_path).run(epochs=2).seen
    assert seen[:3] != seen[3:]
    assert sorted(chain(*seen[:3])) == sorted(chain(*seen[3:])) == list(range(12))


def test_all_global_generators_are_functions_of_the_place(tmp_path):
    drawn = []
    for attempt in range(2):
        script = Script(tmp_path / str(attempt))
        random.seed(attempt)
        with script.session as session:
            for _ in session.epochs(1):
                drawn.append(draw())
                for (inputs,) in session.batches(script.loader):
                    drawn.append(draw())
                    script.step(inputs)
                drawn.append(draw())
    assert drawn[:5] == drawn[5:]
    assert len({*drawn}) == 5


def draw():
    return (
        random.random(),
        random.gauss(),
        np.random.rand(),
        np.random.randn(),
        torch.rand(1).item(),
        torch.randn(1).item(),
    )


class Drawing(Dataset):
    """Samples of random numbers."""

    def __len__(self):
        return 6

    def __getitem__(self, _index):
        return torch.tensor(draw())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_epoch_draws_what_the_whole_one_draws(workers, tmp_path):
    def run(folder, *, stop_at=None):
        script, drawn = Script(folder), []
        loader = DataLoader(Drawing(), 1, num_workers=workers)
        with contextlib.suppress(Stopped), script.session as session:
            for _ in session.epochs(2):
                for samples in session.batches(loader):
                    script.step(samples[:, :2])
                    drawn.append((*samples.flatten().tolist(), *map(float, draw())))
                    if session.step + 1 == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
        return drawn

    whole = run(tmp_path / "whole")
    parts = [*run(tmp_path / "parts", stop_at=3), *run(tmp_path / "parts", stop_at=7), *run(tmp_path / "parts")]
    assert parts == whole
    assert len({*whole}) == 12


def test_steps_without_a_loader_draw_what_the_whole_run_draws(tmp_path):
    def run(folder, *, stop_at=None):
        script, drawn = Script(folder), []
        with contextlib.suppress(Stopped), script.session as session:
            for step in session.steps(6):
                script.step(torch.rand(4, 2))
                drawn.append(tuple(map(float, draw())))
                if step + 1 == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
        return drawn

    assert [*run(tmp_path / "parts", stop_at=2), *run(tmp_path / "parts")] == run(tmp_path / "whole")


def test_accumulated_gradients_are_no_place_to_stop(tmp_path):
    script = Script(tmp_path)
    with pytest.raises(Stopped), script.session as session:
        for _ in session.epochs(1):
            for index, (inputs,) in enumerate(session.batches(script.loader)):
                script.model(inputs).sum().backward()
                if index == 0:
                    os.kill(os.getpid(), signal.SIGTERM)
                if index == 1:
                    script.optimizer.step()
    assert (script.session.step, script.session.batch) == (1, 2)


def test_a_step_of_several_optimisers_in_one_batch_is_one(tmp_path):
    models = {"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)}
    optimizers = {name: torch.optim.Adam(model.parameters()) for name, model in models.items()}
    with Session(model=models, optimizer=optimizers, folder=tmp_path) as session:
        for _ in session.epochs(1):
            for value in session.batches([1.0, 2.0, 3.0]):
                for name, model in models.items():
                    model(torch.tensor([value])).backward()
                    optimizers[name].step()
        assert session.step == 3
    files = {path.name for path in (tmp_path / "checkpoints" / "latest").iterdir()}
    assert {"model.a.safetensors", "optimizer.b.safetensors"} <= files


def test_a_subclass_that_calls_super_steps_once(tmp_path):
    class Careful(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    script = Script(tmp_path)
    script.session = Session(model=script.model, optimizer=Careful(script.model.parameters(), lr=0.1), folder=tmp_path)
    script.optimizer = script.session._objects["optimizer"]["optimizer"]
    assert script.run(epochs=1).session.step == 3
    assert "step" not in vars(script.optimizer)


def test_a_scheduler_may_be_made_within_the_session(tmp_path):
    script = Script(tmp_path)
    with script.session as session:
        scheduler = torch.optim.lr_scheduler.StepLR(script.optimizer, 1)
        for _ in session.epochs(1):
            for (inputs,) in session.batches(script.loader):
                script.step(inputs)
            scheduler.step()
    assert script.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_steps_go_on_without_epochs(tmp_path):
    def run(stop_at=None):
        script, drawn = Script(tmp_path / str(stop_at)), []
        with script.session as session:
            for step in session.steps(6):
                drawn.append((step, torch.rand(1).item()))
                script.step(torch.ones(1, 2))
                if step == stop_at:
                    os.kill(os.getpid(), signal.SIGUSR1)
        return drawn

    whole = run()
    with pytest.raises(Stopped):
        run(stop_at=2)
    assert read_status(tmp_path / "2").verdict == "out-of-time 3 time-limit"
    assert run(stop_at=2) == whole[3:]


def test_a_stop_during_validation_waits_for_its_end(tmp_path):
    script = Script(tmp_path, best="accuracy")
    with pytest.raises(Stopped), script.session as session:
        for _ in session.epochs(2):
            for (inputs,) in session.batches(script.loader):
                script.step(inputs)
            os.kill(os.getpid(), signal.SIGTERM)
            session.metrics(accuracy=0.5)
    assert session.epoch == 1
    assert records(tmp_path)[-1]["accuracy"] == 0.5
    assert (tmp_path / "checkpoints" / "best").resolve().name == "step_00000003"


def test_a_stop_behind_the_last_batch_waits_for_the_validation_and_is_saved_before(tmp_path):
    """A script that was resumed behind its last batch would have no loss to print."""

    def run(script, stop_at=None):
        validated = []
        with script.session as session:
            for epoch in session.epochs(2):
                for (inputs,) in session.batches(script.loader):
                    script.step(inputs)
                    if session.step + 1 == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
                if stop_at:
                    session._opened.recorder.on_root.wait()
                    assert (tmp_path / "checkpoints" / "latest").resolve().name == "step_00000003"
                validated.append(epoch)
                session.metrics(accuracy=epoch)
        return validated

    with pytest.raises(Stopped):
        run(Script(tmp_path, best="accuracy"), stop_at=3)
    assert (tmp_path / "checkpoints" / "latest").resolve().name == "step_00000003"
    again = Script(tmp_path, best="accuracy")
    assert (run(again), len(again.seen)) == ([1], 3)
    assert [record["accuracy"] for record in records(tmp_path) if record["kind"] == "validation"] == [0, 1]


def test_several_passes_in_an_epoch(tmp_path):
    def run(folder, stop_at=None):
        script = Script(folder)
        with script.session as session:
            for _ in session.epochs(1):
                for loader in (script.loader, DataLoader(script.loader.dataset, 6)):
                    for (inputs,) in session.batches(loader):
                        script.step(inputs)
                        if session.step + 1 == stop_at:
                            os.kill(os.getpid(), signal.SIGTERM)
        return script.seen

    whole = run(tmp_path / "whole")
    assert len(whole) == 5
    for stop_at in (1, 2, 3, 4):
        with pytest.raises(Stopped):
            run(tmp_path / str(stop_at), stop_at)
        stopped_at = 4 if stop_at == 3 else stop_at  # not behind the last batch of a pass
        assert run(tmp_path / str(stop_at)) == whole[stopped_at:]


def test_break_ends_the_pass_and_not_the_run(tmp_path):
    script = Script(tmp_path)
    with script.session as session:
        for _ in session.epochs(2):
            for index, (inputs,) in enumerate(session.batches(script.loader)):
                script.step(inputs)
                if index == 1:
                    break
    assert (session.step, len(script.seen)) == (4, 4)
    assert read_status(tmp_path).state == "done"


def test_another_kind_of_data_is_read_again_up_to_the_place(tmp_path, caplog):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.arange(6.0).view(6, 1))

    def run(stop_at=None):
        model = nn.Linear(1, 1)
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
        with Session(model=model, optimizer=optimizer, folder=tmp_path) as session:
            for _ in session.epochs(1):
                for batch in session.batches(DataLoader(Stream(), batch_size=2)):
                    seen.append(batch.flatten().tolist())
                    model(batch).sum().backward()
                    optimizer.step()
                    if session.step + 1 == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
        return seen

    with pytest.raises(Stopped):
        run(stop_at=2)
    assert run() == [[4.0, 5.0]]
    assert_warning(caplog.text, "slow-resume", 2)


def test_numbers_that_are_not_finite_end_the_run_before_it_is_saved(tmp_path):
    script = Script(tmp_path, checkpoint_steps=1)
    with refused("diverged", "loss", 2), script.session as s:
        for step in s.steps(5):
            script.step(torch.ones(1, 2))
            if step == 1:
                s.log(loss=float("nan"))
    assert (tmp_path / "checkpoints" / "latest").resolve().name == "step_00000001"
    assert read_status(tmp_path).state == "failed"


def test_a_full_disk_does_not_end_training(tmp_path, caplog):
    script = Script(tmp_path, checkpoint_steps=1)
    script.model.register_buffer("large", torch.zeros(20_000))
    with script.session as session:
        for step in session.steps(4):
            script.step(torch.ones(1, 2))
            if step == 0:
                limit = file_size_limit(40_000)
                limit.__enter__()
            if step == 2:
                session._opened.recorder.on_root.wait()
                limit.__exit__(None, None, None)
    assert "checkpoint-not-written" in slugs(caplog.text)
    assert read_status(tmp_path).verdict == "done 4 complete"


MISUSES = {
    "nothing to save": (lambda folder: Session(folder=folder), "session-arguments", "model=", "optimizer="),
    "no state": (lambda folder: Session(model=3, folder=folder), "no-state-dict", "model", "int", "load_state_dict"),
    "name": (lambda _: Session(model={"a/b": nn.Linear(1, 1)}), "bad-name", "model", "'a/b'"),
    "interval": (lambda _: Session(model=nn.Linear(1, 1), log_interval=0), "session-arguments", "log_interval=0"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_arguments_that_make_no_sense_are_refused(name, tmp_path):
    make, slug, *values = MISUSES[name]
    with refused(slug, *values):
        make(tmp_path)
    assert not any(tmp_path.iterdir())


def test_an_optimiser_that_never_steps(tmp_path):
    script = Script(tmp_path)
    script.optimizer = torch.optim.SGD(script.model.parameters(), lr=0.1)  # not the session's
    with refused("no-optimizer-step", "Session(optimizer="):
        script.run()


def test_two_sessions(tmp_path):
    with Script(tmp_path / "a").session, refused("session-not-open"):
        Script(tmp_path / "b").session.__enter__()
    Script(tmp_path / "b").run()


def test_a_session_in_a_thread(tmp_path):
    caught = []

    def run():
        try:
            Script(tmp_path).run()
        except SessionError as error:
            caught.append(error.slug)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert caught == ["session-thread"]


def test_a_changed_loader(tmp_path):
    with pytest.raises(Stopped):
        Script(tmp_path).run(stop_at=2)
    script = Script(tmp_path)
    script.loader = DataLoader(script.loader.dataset, 6, shuffle=True)
    with refused("different-data", 2, 3):
        script.run()
    assert read_status(tmp_path).state == "failed"
    Script(tmp_path).run()


@pytest.mark.parametrize(
    ("change", "slug", "values"),
    [
        ({"model": nn.Linear(2, 1)}, "different-state", ["model", "weight", "bias"]),
        (
            {"model": nn.Sequential(nn.Linear(2, 4), nn.Dropout(), nn.Linear(4, 1))},
            "different-state",
            ["0.weight", [3, 2], [4, 2]],
        ),
        ({"scheduler": nn.Linear(1, 1)}, "different-run", ["scheduler"]),
        ({"optimizer": None}, "different-run", ["optimizer"]),
        ({"seed": 1}, "different-run", ["seed", 0, 1]),
    ],
)
def test_a_changed_script(change, slug, values, tmp_path):
    Script(tmp_path).run(epochs=1)
    before = (tmp_path / "status.json").read_bytes()
    script = Script(tmp_path)
    given = {"model": script.model, "folder": tmp_path} | change
    given.setdefault("optimizer", torch.optim.SGD(given["model"].parameters(), lr=0.1, momentum=0.9))
    with refused(slug, *values):
        Session(**given).__enter__()
    assert (tmp_path / "status.json").read_bytes() == before


def test_a_run_of_the_trainer_is_left_alone(tmp_path):
    Script(tmp_path).run(epochs=1)
    manifest = tmp_path / "checkpoints" / "latest" / "manifest.json"
    from slipway.checkpoint.folder import Checkpoint, read_checkpoint, write_checkpoint  # noqa: PLC0415

    found = read_checkpoint(manifest.parent)
    write_checkpoint(manifest.parent.resolve(), Checkpoint(found.tensors, found.header._replace(facts={"seed": 0})))
    with refused("different-run", tmp_path):
        Script(tmp_path).session.__enter__()


def test_what_is_logged_must_be_a_number(tmp_path):
    with Script(tmp_path).session as session:
        with refused("not-a-number", "loss", "tensor", [2]):
            session.log(loss=torch.ones(2))
        with refused("not-a-number", "loss", "str"):
            session.log(loss="much")


def test_an_error_of_the_script_is_recorded(tmp_path):
    with pytest.raises(ZeroDivisionError) as error, Script(tmp_path).session as session:
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


def test_a_step_dispatches_at_most_three_operators_more(tmp_path, monkeypatch):
    monkeypatch.setattr("slipway.agreement.VOTE_INTERVAL", 10)
    script = Script(tmp_path, log_interval=1000, checkpoint_minutes=None)

    script.optimizer.param_groups[0]["lr"] = 0.001

    def operators(steps, log):
        with CountOperators() as counted:
            for _ in steps:
                script.optimizer.zero_grad()
                loss = script.model(torch.ones(1, 2)).square().mean()
                loss.backward()
                script.optimizer.step()
                log(loss)
        return counted.count

    operators(range(1), print)  # the first step makes the optimiser's state
    bare = operators(range(200), lambda _: None)
    with script.session as session:
        first, second = (operators(session.steps(end), lambda loss: session.log(loss=loss)) for end in (200, 400))
    assert bare < second <= bare + 200 * 3
    assert first > bare


class TestAccumulation:
    def train(self, folder, *, stop_at=None, flush=True, epochs=3):
        """Accumulate over two of three batches; what is left over is applied behind the loop, or in the next epoch."""
        script = Script(folder)
        with script.session as session:
            for _ in session.epochs(epochs):
                for index, (inputs,) in enumerate(session.batches(script.loader), session.batch):
                    script.model(inputs).square().mean().backward()
                    if index % 2:
                        script.optimizer.step()
                        script.optimizer.zero_grad()
                    if (session.epoch, index) == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
                if flush:
                    script.optimizer.step()
                    script.optimizer.zero_grad()
        return script

    @pytest.mark.parametrize("flush", [True, False])
    @pytest.mark.parametrize("stop_at", [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 1)], ids=str)
    def test_a_run_goes_on_bit_by_bit(self, stop_at, flush, tmp_path):
        whole = self.train(tmp_path / "whole", flush=flush)
        with pytest.raises(Stopped):
            self.train(tmp_path / "run", stop_at=stop_at, flush=flush)
        again = self.train(tmp_path / "run", flush=flush)
        assert again.session.step == whole.session.step
        assert all(map(torch.equal, again.model.state_dict().values(), whole.model.state_dict().values()))

    def test_the_end_of_an_epoch_is_saved_behind_the_next_step(self, tmp_path):
        script = self.train(tmp_path, flush=False, epochs=2)
        steps = sorted(int(path.name[-8:]) for path in (tmp_path / "checkpoints").glob("step_*"))
        assert (steps, script.session.step) == ([2], 2)

    def test_a_validation_in_a_pass_does_not_hold_the_checkpoint_back(self, tmp_path):
        script = Script(tmp_path, best="accuracy")
        with script.session as session:
            for epoch in session.epochs(2):
                for (inputs,) in session.batches(script.loader):
                    script.step(inputs)
                for _ in session.batches(script.loader):
                    pass
                session.metrics(accuracy=-epoch)
        assert (tmp_path / "checkpoints" / "best").resolve().name == "step_00000003"


def test_the_best_is_known_where_a_run_is_left_early_and_without_epochs(tmp_path):
    script = Script(tmp_path / "a", best="accuracy")
    with script.session as session:
        for epoch in session.epochs(5):
            for (inputs,) in session.batches(script.loader):
                script.step(inputs)
            session.metrics(accuracy=epoch)
            if epoch == 1:
                break
    assert (tmp_path / "a" / "checkpoints" / "best").resolve().name == "step_00000006"
    script = Script(tmp_path / "b", best="accuracy", checkpoint_steps=2)
    with script.session as session:
        for step in session.steps(6):
            script.step(torch.ones(1, 2))
            if step == 3:
                session.metrics(accuracy=1)
    assert (tmp_path / "b" / "checkpoints" / "best").resolve().name == "step_00000004"


def test_metrics_before_the_batches_are_recorded_once(tmp_path):
    def run(stop_at=None):
        script = Script(tmp_path)
        with script.session as session:
            for _ in session.epochs(2):
                session.metrics(accuracy=session.epoch)
                for (inputs,) in session.batches(script.loader):
                    script.step(inputs)
                    if session.step + 1 == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        run(stop_at=2)
    run()
    assert [(r["step"], r["accuracy"]) for r in records(tmp_path) if r["kind"] == "validation"] == [(0, 0), (3, 1)]


@pytest.mark.parametrize(("misuse", "slug"), [("zip", "two-passes"), ("hoisted", "batches-not-called")])
def test_batches_that_are_not_iterated_at_once(misuse, slug, tmp_path):
    script = Script(tmp_path)
    with refused(slug, *["session.batches(zip(a, b))"] * (misuse == "zip")), script.session as session:
        hoisted = session.batches(script.loader)
        for _ in session.epochs(2):
            both = [session.batches(script.loader) for _ in range(2)] if misuse == "zip" else [hoisted]
            for (inputs,), *_ in zip(*both, strict=True):
                script.step(inputs)


def test_names_that_each_record_has_are_refused(tmp_path):
    with Script(tmp_path).session as session:
        with refused("bad-name", "step"):
            session.log(step=1)
        with refused("bad-name", "epoch", "kind"):
            session.metrics(kind=1, epoch=2)


def test_an_optimiser_whose_wrapper_may_not_step(tmp_path):
    class Wrapped:
        def __init__(self, optimizer):
            self.optimizer, self.allowed = optimizer, False

        def step(self):
            if self.allowed:
                self.optimizer.step()

        def __getattr__(self, name):
            return getattr(self.optimizer, name)

    script = Script(tmp_path)
    wrapped = Wrapped(script.optimizer)
    script.session = Session(model=script.model, optimizer=wrapped, folder=tmp_path)
    with script.session as session:
        for _ in session.epochs(1):
            for index, (inputs,) in enumerate(session.batches(script.loader)):
                script.model(inputs).sum().backward()
                wrapped.allowed = index == 1
                wrapped.step()
    assert session.step == 1


def test_what_a_session_patches_is_as_before_where_it_cannot_open(tmp_path):
    script = Script(tmp_path)
    get_iterator = DataLoader._get_iterator
    session = Session(model=script.model, optimizer=script.optimizer, scaler=nn.Linear(1, 1), folder=tmp_path)
    with pytest.raises(AttributeError):
        session.__enter__()
    assert "step" not in vars(script.optimizer)
    assert DataLoader._get_iterator is get_iterator
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    script.run(epochs=1)


def test_loaders_of_one_epoch_are_let_go(tmp_path):
    script = Script(tmp_path)
    with script.session as session:
        for _ in session.epochs(3):
            for (inputs,) in session.batches(DataLoader(script.loader.dataset, 4)):
                script.step(inputs)
        assert len(session._feed._sources) <= 1


def test_a_stream_that_draws_is_read_again_alike(tmp_path):
    class Shuffled(IterableDataset):
        def __iter__(self):
            buffer = list(range(6))
            while buffer:
                yield torch.tensor([float(buffer.pop(random.randrange(len(buffer))))])

    def run(folder, stop_at=None):
        script, seen = Script(folder), []
        with script.session as session:
            for _ in session.epochs(1):
                for batch in session.batches(DataLoader(Shuffled(), batch_size=1)):
                    seen.append(batch.item())
                    script.step(torch.ones(1, 2) * random.random())
                    if session.step + 1 == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
        return seen

    whole = run(tmp_path / "whole")
    assert sorted(whole) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(Stopped):
        run(tmp_path / "run", stop_at=3)
    assert run(tmp_path / "run") == whole[3:]


def test_a_run_that_was_left_early_is_done(tmp_path):
    def run():
        script = Script(tmp_path)
        with script.session as session:
            for epoch in session.epochs(5):
                for (inputs,) in session.batches(script.loader):
                    script.step(inputs)
                if epoch == 1:
                    break
        return len(script.seen)

    assert [run(), run(), run()] == [6, 0, 0]
    assert read_status(tmp_path).verdict == "done 6 complete"


def test_a_stop_that_the_script_catches_ends_it_all_the_same(tmp_path):
    script = Script(tmp_path)
    with pytest.raises(Stopped), script.session as session:
        try:
            for step in session.steps(5):
                script.step(torch.ones(1, 2))
                if step == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:  # noqa: BLE001, S110 -- as scripts do
            pass
    assert read_status(tmp_path).state == "stopped"


def test_an_optimiser_of_another_kind(tmp_path):
    Script(tmp_path).run(epochs=1)
    script = Script(tmp_path)
    adam = torch.optim.AdamW(script.model.parameters())
    with refused("different-state", "optimizer", "dampening", "momentum"):
        Session(model=script.model, optimizer=adam, folder=tmp_path).__enter__()


def test_a_session_that_is_not_open(tmp_path):
    with refused("session-not-open"):
        next(Script(tmp_path).session.epochs(1))


def test_workers_end_at_once_where_a_run_stops(tmp_path):
    script = Script(tmp_path)
    script.loader = DataLoader(script.loader.dataset, 1, num_workers=1)
    with pytest.raises(Stopped), script.session as session:
        for _ in session.epochs(1):
            batches = session.batches(script.loader)
            for (inputs,) in batches:
                script.step(inputs)
                (worker,) = session._feed._replay._iterator._workers
                os.kill(os.getpid(), signal.SIGTERM)
    assert not worker.is_alive()


MOMENTUM = {"lr": 0.1, "momentum": 0.9}


class TestFusedOptimisersUnderGradScaler:
    """tests/unit/test_fused_sgd.py shows what each of them computes after a skipped first step."""

    @staticmethod
    def warned(folder, caplog, optimizer, scaler):
        """Open a session, take a step, and return the names of the optimisers that the session warned of."""
        caplog.clear()
        model = nn.Linear(2, 1)
        optimizers = optimizer(model.parameters())
        with Session(model=model, optimizer=optimizers, scaler=scaler, folder=folder) as session:
            found = [record.args[0] for record in caplog.records if record.name == "slipway.skipping"]
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
    def test_one_whose_skipped_first_step_goes_wrong_is_named(self, build, enabled, expected, tmp_path, caplog):
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        assert self.warned(tmp_path, caplog, lambda p: {"it": build(p)}, scaler) == expected

    def test_one_that_has_momentum_is_not_warned_of(self, tmp_path, caplog):
        def both(parameters):
            weight, bias = parameters
            return {name: torch.optim.SGD([p], **MOMENTUM, fused=True) for name, p in (("w", weight), ("b", bias))}

        scaler = torch.amp.GradScaler("cpu")
        assert self.warned(tmp_path, caplog, both, scaler) == ["optimizer.w", "optimizer.b"]
        assert self.warned(tmp_path, caplog, both, scaler) == []

    @pytest.mark.parametrize(("arguments", "expected"), [({"fused": True}, ["wrapped"]), ({"foreach": True}, [])])
    def test_one_of_parameters_on_two_devices_is_named(self, arguments, expected, caplog):
        parameters = [nn.Parameter(torch.ones(1, device=device)) for device in ("cpu", "meta")]
        wrapped = types.SimpleNamespace(optimizer=torch.optim.AdamW(parameters, **arguments))
        warn_of_skipping({"wrapped": wrapped}, [None, torch.amp.GradScaler("cpu")])
        assert [record.args[0] for record in caplog.records] == expected
