"""Values that a script provides: epoch means across stops, logged values, and arguments."""

import contextlib
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from attempts import Attempt, terminate
from messages import assert_warning, refused, slugs
from session_runs import records, saved_step
from slipway import Stopped
from slipway.checks.skipped_steps import Scalers
from slipway.run.status import read_status
from slipway.script.pass_means import Means, Sum
from slipway.script.step_metrics import Logged, Window

pytestmark = pytest.mark.usefixtures("agree_after_each_step")

LOSSES = [0.1, 1e-3, 3.7, 2.5e5, 0.7, 1 / 3, 1e-9]
WEIGHTS = [4, 4, 4, 4, 4, 4, 1]


class KilledError(Exception):
    """Ends a script that can no longer save."""


def train(folder, *, epochs=2, kill=None, end=terminate, leave_at=None):
    """Train and validate; stop at batch ``kill`` of an epoch, counted over its passes. Return means by epoch."""
    attempt, found = Attempt(folder), {}
    with contextlib.suppress(Stopped, KilledError), attempt.open(checkpoint_steps=1) as session:
        for epoch in session.epochs(epochs):
            for index, loss in enumerate(session.batches(LOSSES), session.batch):
                attempt.update()
                session.mean("loss", torch.tensor(loss, dtype=torch.float32) * (epoch + 1), WEIGHTS[index])
                session.mean("train only", loss)
                if (epoch, index) == kill:
                    end()
                if index == leave_at:
                    break
            trained = session.mean("loss")
            for index, loss in enumerate(session.batches(LOSSES[:3]), session.batch):
                session.mean("loss", loss - epoch)
                if (epoch, index + len(LOSSES)) == kill:
                    end()
            found[epoch] = trained, session.mean("loss"), session.mean("train only")
    return found


def kill_now():
    raise KilledError


class TestMeanAcrossStops:
    def test_mean_is_weighted_and_per_pass(self, tmp_path):
        found = train(tmp_path)
        expected = sum(weight * loss for loss, weight in zip(LOSSES, WEIGHTS, strict=True)) / sum(WEIGHTS)
        assert [trained for trained, *_ in found.values()] == pytest.approx([expected, 2 * expected])
        assert [validated for _, validated, _ in found.values()] == pytest.approx(
            [sum(LOSSES[:3]) / 3, sum(LOSSES[:3]) / 3 - 1]
        )
        assert found[0][2] == pytest.approx(sum(LOSSES) / len(LOSSES))
        left_by_break = train(tmp_path / "left", leave_at=4)
        assert left_by_break[0][2] == pytest.approx(sum(LOSSES[:5]) / 5)

    @pytest.mark.parametrize("end", [terminate, kill_now])
    @pytest.mark.parametrize(
        ("kills", "options"),
        [
            ([(0, 0)], {}),
            ([(0, 3)], {}),
            ([(1, 6)], {}),
            ([(1, 8)], {}),  # in a validation
            ([(0, 1), (0, 2), (0, 5), (1, 0), (1, 2), (1, 3)], {}),
            ([(1, 2)], {"leave_at": 4}),
        ],
        ids=str,
    )
    def test_mean_of_resumed_run_is_bit_identical(self, kills, options, end, tmp_path):
        found = {}
        for kill in [*kills, None]:
            found |= train(tmp_path / "run", kill=kill, end=end, **options)
        assert found == train(tmp_path / "whole", **options)

    def test_mean_is_readable_if_completed_run_is_opened_again(self, tmp_path):
        def run():
            attempt = Attempt(tmp_path)
            with attempt.open() as session:
                for _ in session.epochs(2):
                    for loss in session.batches(LOSSES):
                        attempt.update()
                        session.mean("loss", loss)
                return session.mean("loss")

        assert run() == run()


def logged(folder, kills):
    """Log the losses of a run killed at each of ``kills``; return what the last checkpoint holds of them."""
    for kill in [*kills, None]:
        attempt = Attempt(folder)
        with contextlib.suppress(Stopped, KilledError), attempt.open(checkpoint_steps=1) as session:
            for _ in session.epochs(1):
                for index, loss in enumerate(session.batches(LOSSES), session.batch):
                    attempt.update()
                    session.log(loss=loss / 3)
                    if index == kill:
                        (kill_now if kill % 2 else terminate)()
    manifest = folder / "checkpoints" / "latest" / "manifest.json"
    return json.loads(manifest.read_text())["facts"]["window"]


def test_logged_values_of_resumed_run_are_bit_identical(tmp_path):
    whole = logged(tmp_path / "whole", [])
    assert whole[0]["loss"][1] == len(LOSSES)
    assert logged(tmp_path / "run", [0, 1, 3, 4, 5]) == whole


def test_mean_read_inside_loop_is_running_mean(tmp_path):
    attempt, seen = Attempt(tmp_path), []
    with attempt.open() as session:
        for _ in session.epochs(2):
            for loss in session.batches([1.0, 2.0, 6.0]):
                attempt.update()
                session.mean("loss", loss)
                seen.append(session.mean("loss"))
    assert seen == 2 * [1.0, 1.5, 3.0]


def test_session_steps_loop_counts_as_one_pass(tmp_path):
    def run(kill=None):
        attempt = Attempt(tmp_path / str(kill))
        with contextlib.suppress(Stopped), attempt.open(checkpoint_steps=1) as session:
            for step in session.steps(6):
                attempt.update()
                session.mean("loss", LOSSES[step])
                if step == kill:
                    terminate()
            return session.mean("loss")

    whole = run()
    assert run(kill=3) is None
    assert run(kill=3) == whole


@pytest.mark.parametrize("where", ["before", "between", "after break", "after the epochs"])
def test_mean_outside_of_pass_is_refused(where, tmp_path):
    attempt = Attempt(tmp_path)
    with refused("mean-outside-batches", "loss"), attempt.open() as session:
        for _ in session.epochs(2):
            if where == "before":
                session.mean("loss", 1.0)
            for _ in session.batches(LOSSES):
                attempt.update()
                if where == "after break":
                    break
            if where in {"between", "after break"}:
                session.mean("loss", 1.0)
        session.mean("loss", 1.0)


def test_reading_mean_without_values_is_refused(tmp_path):
    attempt = Attempt(tmp_path)
    with refused("unknown-metric", "los"), attempt.open() as session:
        for epoch in session.epochs(2):
            if epoch:
                session.mean("loss")  # of the epoch before: a resumed run would not know it
            for loss in session.batches(LOSSES):
                attempt.update()
                session.mean("loss", loss)
    with refused("unknown-metric", "los"), Attempt(tmp_path).open() as session:
        session.mean("los")


def test_infinite_value_gives_inf_mean_and_zero_weights_give_nan(tmp_path):
    attempt = Attempt(tmp_path)
    with attempt.open() as session:
        for _ in session.epochs(1):
            for loss in session.batches([1.0, math.inf]):
                attempt.update()
                session.mean("loss", loss)
                session.mean("none", loss, 0 if loss == 1 else 0.0)
        assert session.mean("loss") == math.inf
        assert math.isnan(session.mean("none"))


class TestRanks:
    def run(self, size, values, *, saved=None, under_way=0):
        """Add each rank's values, and return what each rank would save and read."""
        ranks = [Means(rank, size) for rank in range(size)]
        for rank, means in enumerate(ranks):
            means.resume(saved or {}, under_way=under_way)
            means.begin(0, resumed=bool(saved))
            for value, weight in values[rank]:
                means.add("loss", value, weight)
        parts = [means.part() for means in ranks]
        facts = json.loads(json.dumps([means.facts(parts) for means in ranks]))
        for means in ranks:
            means.end(parts)
        return facts, [means.read("loss") for means in ranks]

    def test_all_ranks_read_same_mean_even_rank_without_batches(self):
        facts, read = self.run(3, [[(1.0, 2)], [], [(4.0, 1), (7.0, 1)]])
        assert read == [13 / 4] * 3
        assert facts[0] == facts[1] == facts[2]

    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    def test_all_saved_parts_count_after_world_size_change(self, size):
        (saved, *_), _ = self.run(3, [[(1.0, 2)], [(2.0, 1)], [(4.0, 1)]])
        _, read = self.run(size, [[(8.0, 2)]] + [[]] * (size - 1), saved=saved)
        assert read == [pytest.approx(24 / 6)] * size

    def test_restarted_pass_discards_saved_values(self):
        means = Means(0, 1)
        means.resume({"0": [{"loss": [3.0, 1]}]}, under_way=0)
        means.begin(0, resumed=False)
        means.add("loss", 5.0, 1)
        means.end([means.part()])
        assert means.read("loss") == 5


class TestWindow:
    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_all_saved_parts_count_after_world_size_change(self, size):
        saved = [{"loss": [1.0, 1, 0]}, {}, {"loss": [6.0, 2, 1], "norm": [0.0, 0, 2]}]
        ranks = [Window(rank, size, saved) for rank in range(size)]
        ranks[0].parts = [window.part() for window in ranks]
        assert ranks[0].means == {"loss": pytest.approx(7 / 3, rel=1e-6), "loss_nonfinite": 1, "norm_nonfinite": 2}


class TestSum:
    def test_sum_of_tensors_equals_sum_of_floats(self):
        """As on a GPU: tensors are not read there, but added to a tensor."""
        values = [torch.rand(()) for _ in range(100)]
        on_device, here = Sum(), Sum()
        for total in (on_device, here):
            total.add(0.5)
        for value in values:
            on_device.add(value, 3)
            here.add(value.item(), 3)
        assert float(on_device) == float(here)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool])
    def test_sum_accepts_mixed_real_dtypes(self, dtype):
        total = Sum()
        total.add(2.0)
        total.add(torch.ones((), dtype=dtype), torch.tensor(3))
        total.add(torch.ones((), dtype=dtype), 0.5)
        total.add(4.0, torch.tensor(0.25))
        assert float(total) == 6.5

    def test_inference_mode_values_can_be_added_to_later(self):
        total, logged = Sum(), Logged()
        with torch.inference_mode():
            total.add(torch.ones(()))
            logged.add(torch.ones(()))
        total.add(torch.ones(()))
        logged.add(torch.ones(()))
        assert (float(total), logged.sums()) == (2, [2, 2, 0])

    def test_logged_sums_are_exact_beyond_buffer_size(self):
        logged = Logged()
        for number in range(200):
            logged.add(torch.tensor(float(number)))
            if number == 150:
                assert logged.sums()[:2] == [sum(range(151)), 151]
        logged.add(torch.tensor(math.nan))
        logged.add(math.inf)
        assert logged.sums() == [sum(range(200)), 200, 2]


INVALID_NUMBERS = [None, "0.5", b"1", [1.0], 1j, torch.ones(2), torch.ones(0), torch.tensor(1j), object(), np.ones(2)]
NUMBERS = [1, True, np.float32(1), np.int64(1), np.array(1.0), Fraction(1), torch.ones(1, 1), torch.tensor(True)]


@pytest.mark.parametrize("call", ["log", "metrics", "mean", "weight"])
def test_log_metrics_and_mean_accept_only_real_scalars(call, tmp_path):
    attempt = Attempt(tmp_path)
    give = {
        "log": lambda session, value: session.log(v=value),
        "metrics": lambda session, value: session.metrics(v=value),
        "mean": lambda session, value: session.mean("v", value),
        "weight": lambda session, value: session.mean("v", 1.0, value),
    }[call]
    with attempt.open() as session:
        for _ in session.epochs(1):
            for _ in session.batches([0]):
                attempt.update()
                for value in NUMBERS:
                    give(session, value)
                for value in INVALID_NUMBERS:
                    kind = "tensor" if isinstance(value, torch.Tensor) else type(value).__name__
                    with refused("not-a-number", "v" if call != "weight" else "weight", kind):
                        give(session, value)
    validations = [record["v"] for record in records(tmp_path) if record["kind"] == "validation"]
    assert validations == [1.0] * len(NUMBERS) * (call == "metrics")


@pytest.mark.parametrize("weight", [-1, math.nan])
def test_negative_or_nan_weight_is_refused(weight, tmp_path):
    attempt = Attempt(tmp_path)
    with refused("not-a-number", "weight"), attempt.open() as session:
        for _ in session.batches([0]):
            session.mean("v", 1.0, weight)


TOTALS = [range(3), "3", 2.5, 3.0, -1, None, [3], torch.tensor(2.5)]


@pytest.mark.parametrize("call", ["epochs", "steps"])
def test_invalid_epoch_and_step_totals_are_refused_at_call(call, tmp_path):
    with Attempt(tmp_path).open() as session:
        for total in TOTALS:
            with refused("session-arguments", call):
                getattr(session, call)(total)
        for total in (0, np.int64(0), torch.tensor(0), False):
            assert list(getattr(session, call)(total)) == []


def test_batches_refuses_object_that_is_not_iterable(tmp_path):
    with Attempt(tmp_path).open() as session:
        for loader in (5, None, list, torch.utils.data.DataLoader, kill_now):
            with refused("session-arguments", "batches"):
                session.batches(loader)


@pytest.mark.parametrize("device", ["nonsense", 1.5, torch.ones(1), "cuda:99"])
def test_batches_refuses_unknown_device(device, tmp_path):
    with Attempt(tmp_path).open() as session, refused("no-gpu" if device == "cuda:99" else "session-arguments"):
        session.batches([0], device=device)


class TestNonfiniteValues:
    def train(self, folder, values, *, scale=None, **options):
        """Log a gradient norm in each step; where it is not finite the scaler, if any, skips the step."""
        attempt = Attempt(folder)
        scaler = options.get("scaler")
        with attempt.open(**{"checkpoint_steps": 1, "log_interval": 1, **options}) as session:
            for _ in session.epochs(1):
                for value in session.batches(values):
                    attempt.both.zero_grad()
                    loss = attempt.model(torch.ones(1, 2)).sum() * value
                    (scaler.scale(loss) if scaler else loss).backward()
                    if scaler:
                        scaler.unscale_(attempt.both)
                        scaler.step(attempt.both)
                        scaler.update(scale)
                    else:
                        attempt.both.step()
                    session.log(grad_norm=torch.tensor(value), loss=1.0)
        return records(folder)

    def test_nonfinite_gradient_in_skipped_step_is_not_divergence(self, tmp_path):
        values = [math.inf] * 12 + [1.0, math.nan, 2.0]
        found = self.train(tmp_path, values, scaler=torch.amp.GradScaler("cpu"))
        assert [record.get("grad_norm") for record in found[:15]] == [None] * 12 + [1, None, 2]
        assert [record.get("grad_norm_nonfinite") for record in found[:15]] == [1] * 12 + [None, 1, None]
        assert {record["loss"] for record in found} == {1.0}
        assert all(math.isfinite(number) for record in found for number in record.values() if number != "train")

    def test_nonfinite_gradient_in_unskipped_step_is_divergence(self, tmp_path):
        with refused("diverged", "grad_norm", 2):
            self.train(tmp_path, [1.0, math.inf, 1.0], scaler=torch.amp.GradScaler("cpu"), scale=1.0)

    def test_scaler_that_skips_every_step_is_divergence(self, tmp_path):
        with refused("diverged", "grad_norm", 31):
            self.train(tmp_path, [math.inf] * 50, scaler=torch.amp.GradScaler("cpu"))

    @pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu", enabled=False)])
    def test_divergence_message_suggests_scaler_and_allow_nonfinite(self, scaler, tmp_path):
        with refused("diverged", "grad_norm", "Session(scaler=scaler)", "allow_nonfinite=True") as caught:
            self.train(tmp_path, [1.0, math.inf], **({"scaler": scaler} if scaler else {}))
        assert "loss" not in str(caught.value).split(":")[0]
        assert saved_step(tmp_path) == 1
        assert read_status(tmp_path).state == "failed"

    def test_allow_nonfinite_averages_only_finite_values(self, tmp_path):
        found = self.train(tmp_path, [1.0, math.inf, 3.0], allow_nonfinite=True, log_interval=3)
        assert (found[-1]["grad_norm"], found[-1]["grad_norm_nonfinite"]) == (2, 1)

    def test_skipped_step_is_detected_if_scale_grew_and_fell(self):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        (weight,) = parameters = [nn.Parameter(torch.ones(()))]
        optimizer = torch.optim.SGD(parameters, lr=0.1)

        def step(value):
            optimizer.zero_grad()
            scaler.scale(weight * value).backward()
            scaler.step(optimizer)
            scaler.update()

        step(1.0)
        scalers = Scalers([scaler, None, nn.Linear(1, 1)])
        for values, skipped in [([1.0], False), ([1.0, math.inf], True), ([1.0], False), ([math.inf], True)]:
            for value in values:
                step(value)
            assert scalers.have_skipped() == skipped
        assert scaler.get_scale() == 2


class TestRunWithoutOptimizerSteps:
    def collect(self, folder, kill=None):
        """Draw numbers in two epochs, then train with as many in two more."""
        attempt = Attempt(folder)
        with contextlib.suppress(Stopped), attempt.open(checkpoint_steps=1) as session:
            for epoch in session.epochs(4):
                for index, _ in enumerate(session.batches(range(3)), session.batch):
                    if epoch > 1:
                        attempt.update()
                    if (epoch, index) == kill:
                        terminate()
        return session.step

    @pytest.mark.parametrize("kill", [None, (0, 1), (1, 2), (2, 1)], ids=str)
    def test_first_epochs_without_optimizer_steps_are_accepted(self, kill, tmp_path, caplog):
        done = self.collect(tmp_path, kill)
        assert done == {None: 6, (2, 1): 2}.get(kill, 0)
        assert self.collect(tmp_path) == 6
        assert "no-optimizer-step" not in slugs(caplog.text)

    def test_wrong_optimizer_warns_in_first_pass_and_fails_at_end(self, tmp_path, caplog):
        attempt = Attempt(tmp_path)
        with refused("no-optimizer-step", "optimizer"), attempt.open(optimizer=attempt.first) as session:
            for _ in session.epochs(2):
                for _ in session.batches(range(3)):
                    attempt.update()
                assert_warning(caplog.text, "no-optimizer-step", "optimizer")
        assert slugs(caplog.text).count("no-optimizer-step") == 1

    def test_run_without_optimizer_steps_is_refused_at_end(self, tmp_path, caplog):
        for epochs in (1, 2):
            with refused("no-optimizer-step"), Attempt(tmp_path).open() as session:
                for _ in session.epochs(epochs):
                    for _ in session.batches(range(3)):
                        pass
            assert session.epoch == epochs
        assert slugs(caplog.text) == []

    def test_missing_optimizer_steps_warn_before_end_of_long_pass(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr("slipway.script.loops.CHECK_AFTER_BATCHES", 3)
        attempt = Attempt(tmp_path)
        with contextlib.suppress(KilledError), attempt.open() as session:
            for _ in session.epochs(1):
                for index in session.batches(range(5)):
                    with torch.no_grad():
                        attempt.model[0].weight.add_(1)
                    if index == 4:
                        kill_now()
        assert slugs(caplog.text) == ["no-optimizer-step"]


class TestSessionBeforeRanksJoin:
    def test_session_before_init_process_group_is_refused_under_launcher(self, tmp_path, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        with refused("separate-processes", "WORLD_SIZE=2", "init_process_group", "hvd.init"):
            Attempt(tmp_path).open().__enter__()

    def test_session_is_refused_in_loop_if_group_forms_later(self, tmp_path, monkeypatch):
        attempt = Attempt(tmp_path)
        with refused("separate-processes", 2, "init_process_group"), attempt.open() as session:
            monkeypatch.setattr("slipway.dist.existing_group.count_ranks", lambda: 2)
            for _ in session.epochs(1):
                session.batches([1])

    def test_process_group_of_size_1_under_launcher_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            with refused("separate-processes", "WORLD_SIZE=2") as caught:
                Attempt(tmp_path).open().__enter__()
        finally:
            torch.distributed.destroy_process_group()
        assert "init_process_group" not in str(caught.value)
