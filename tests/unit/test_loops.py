"""Loops of a session: steps as a pass, nesting, break, sys.exit, and when objects are restored again."""

import random
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from attempts import Attempt, in_session, terminate, whole_and_stopped
from messages import refused, slugs
from slipway import Stopped
from slipway.checkpoint.format import read_checkpoint
from slipway.run.status import read_status

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


class TestSteps:
    @staticmethod
    def accumulate(attempt, loop="steps"):
        with attempt.open() as session:
            for number in session.steps(10) if loop == "steps" else session.batches(range(10)):
                assert session.batch == number
                attempt.backward(number)
                if number % 4 == 3:
                    attempt.apply()
            return attempt.result(session)

    @pytest.mark.parametrize("loop", ["steps", "batches"])
    @pytest.mark.parametrize("stops", [(1,), (4,), (1, 2)], ids=str)
    def test_stop_waits_for_optimizer_step_during_accumulation(self, stops, loop, tmp_path):
        seen = whole_and_stopped(tmp_path, partial(self.accumulate, loop=loop), *stops)
        assert all(len(part) % 4 == 0 for part in seen[:-1])

    def test_iterations_and_optimizer_steps_are_counted_separately(self, tmp_path):
        for seen in ([*range(10)], []):
            assert self.accumulate(attempt := Attempt(tmp_path))[0] == 2
            assert attempt.seen == seen
        facts = read_checkpoint((tmp_path / "checkpoints" / "latest").resolve()).header.facts
        assert facts["feed"]["places"][0][:2] == [0, 10]

    def test_steps_loop_left_by_break_is_done(self, tmp_path):
        @in_session()
        def script(attempt, session):
            for number in session.steps(50):
                attempt.update(number)
                if number == 4:
                    break

        assert whole_and_stopped(tmp_path, script, 2)[1] == [2, 3, 4]
        last = Attempt(tmp_path / "parts")
        script(last)
        assert last.seen == []
        assert read_status(tmp_path / "parts").verdict == "done 5 complete"

    def test_each_steps_loop_continues_after_previous_loop(self, tmp_path):
        @in_session()
        def script(attempt, session):
            for total in (2, 5, 9):
                for number in session.steps(total):
                    attempt.update(number)
                    if number == 7:
                        break
                for number in session.batches(range(10, 12)):
                    attempt.seen.append(number)
                attempt.both.param_groups[0]["lr"] *= 0.5

        seen = whole_and_stopped(tmp_path, script, 1, 3)
        assert seen == [[0], [1, 10, 11, 2, 3], [4, 10, 11, 5, 6, 7, 10, 11]]

    def test_larger_number_of_steps_continues_completed_run(self, tmp_path):
        def script(attempt, total):
            with attempt.open() as session:
                for number in session.steps(total):
                    attempt.update(number)
            return attempt.result(session)

        expected = script(Attempt(tmp_path / "whole"), 6)
        script(Attempt(tmp_path / "parts"), 3)
        assert script(more := Attempt(tmp_path / "parts"), 6) == expected
        assert more.seen == [3, 4, 5]
        assert script(fewer := Attempt(tmp_path / "parts"), 2)[:2] == expected[:2]
        assert fewer.seen == []

    def test_steps_without_optimizer_step_are_refused(self, tmp_path):
        attempt = Attempt(tmp_path)
        with refused("no-optimizer-step"), attempt.open() as session:
            for _ in session.steps(3):
                attempt.backward()

    def test_steps_before_epochs_run_only_once(self, tmp_path):
        @in_session()
        def script(attempt, session):
            for number in session.steps(3):
                attempt.update(number)
            for epoch in session.epochs(3):
                for number in session.batches(range(10, 13)):
                    attempt.update(number + 10 * epoch)

        assert whole_and_stopped(tmp_path, script, 2, 2, 5) == [[0, 1], [2, 10], [11, 12, 20, 21, 22], [30, 31, 32]]


NESTED = [("epochs", "steps"), ("epochs", "epochs"), ("steps", "batches"), ("steps", "epochs"), ("steps", "steps")]


@pytest.mark.parametrize(("outer", "inner"), [*NESTED, ("batches", "steps"), ("batches", "epochs")], ids=str)
def test_nested_loops_are_refused_before_training(outer, inner, tmp_path):
    attempt = Attempt(tmp_path)
    with refused("nested-loops", f"session.{inner}", f"session.{outer}"), attempt.open() as session:
        loops = {"epochs": session.epochs, "steps": session.steps, "batches": lambda n: session.batches(range(n))}
        for _ in loops[outer](3):
            for _ in loops[inner](5):
                attempt.update()
    assert attempt.seen == []


class TestPasses:
    def test_skipped_completed_passes_leave_generators_unchanged(self, tmp_path):
        @in_session()
        def script(attempt, session):
            for _ in session.epochs(1):
                for loader in (DataLoader(range(3)), DataLoader(range(3, 6))):
                    for number in session.batches(loader):
                        attempt.update(number.item() + torch.rand(1).item())

        whole_and_stopped(tmp_path, script, 4, 1)

    def test_break_makes_batch_last_of_pass(self, tmp_path):
        @in_session(checkpoint_steps=1)
        def script(attempt, session):
            for _ in session.epochs(2):
                for number, _ in enumerate(session.batches(range(4)), session.batch):
                    attempt.update(number)
                    if number == 1:
                        break

        assert whole_and_stopped(tmp_path, script, 2) == [[0, 1], [0, 1]]

    @pytest.mark.parametrize("records", [False, True])
    def test_stop_caught_by_script_is_raised_again(self, records, tmp_path):
        @in_session()
        def script(attempt, session):
            for _ in session.epochs(2):
                try:
                    for number in session.batches(range(4)):
                        attempt.update(number)
                except BaseException:  # noqa: BLE001, S110 -- as scripts do
                    pass
                if records:
                    session.metrics(seen=len(attempt.seen))

        assert whole_and_stopped(tmp_path, script, 2) == [[0, 1], [2, 3, 0, 1, 2, 3]]

    def test_iterator_kept_after_break_does_not_affect_next_pass(self, tmp_path):
        @in_session(checkpoint_steps=1)
        def script(attempt, session):
            for _ in session.epochs(3):
                batches = iter(session.batches(range(4)))
                while (number := next(batches, None)) is not None:
                    assert session.batch == number
                    attempt.update(number)
                    if number == 2:
                        break

        assert whole_and_stopped(tmp_path, script, 5) == [[0, 1, 2, 0, 1], [2, 0, 1, 2]]

    def test_pass_before_epochs_is_not_part_of_later_epoch(self, tmp_path):
        @in_session()
        def script(attempt, session):
            for number in session.batches(range(3)):
                attempt.update(number)
            for epoch in session.epochs(2):
                for number in session.batches(range(3)):
                    attempt.update(10 * epoch + number)

        assert whole_and_stopped(tmp_path, script, 8) == [[0, 1, 2, 0, 1, 2, 10, 11], [12]]

    def test_stop_before_resumed_position_loses_no_batches(self, tmp_path):
        @in_session()
        def script(attempt, session):
            for _ in session.epochs(1):
                if session.resumed and attempt.stop_at == 0:
                    terminate()
                for loader in (range(3), range(3, 9)):
                    for number in session.batches(loader):
                        attempt.update(number)

        assert whole_and_stopped(tmp_path, script, 5, 0) == [[0, 1, 2, 3, 4], [5], [6, 7, 8]]

    def test_resumed_run_that_misses_saved_position_fails(self, tmp_path):
        @in_session()
        def script(attempt, session):
            for number in session.batches(range(5)):
                attempt.update(number)

        with pytest.raises(Stopped):
            script(Attempt(tmp_path, 2))
        with refused("batches-not-called"), Attempt(tmp_path).open():
            pass
        assert read_status(tmp_path).state == "failed"


def ahead(batches, count=1):
    """Fetch ``count`` batches before yielding the first, as a prefetcher does."""
    waiting = []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > count:
            yield waiting.pop(0)
    yield from waiting


class TestReadingAhead:
    @staticmethod
    def train(attempt, batches, *, every=1):
        with attempt.open() as session:
            for _ in session.epochs(2):
                for number in batches(session):
                    attempt.backward(number)
                    if number % every == every - 1:
                        attempt.apply()
            return attempt.result(session)

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_save_warns_of_prefetcher_around_session_batches(self, count, tmp_path, caplog):
        with pytest.raises(Stopped):
            self.train(Attempt(tmp_path, stop_at=9), lambda session: ahead(session.batches(range(14)), count))
        assert slugs(caplog.text) == ["reads-ahead"]

    def test_initial_buffer_filling_does_not_warn_of_prefetcher(self, tmp_path, caplog):
        attempt, buffer = Attempt(tmp_path), []
        with attempt.open() as session:
            for _ in session.epochs(1):
                for number in session.batches(range(30)):
                    buffer.append(number)
                    if len(buffer) > 8:
                        attempt.update(number)
        assert not slugs(caplog.text)

    def test_prefetcher_within_session_batches_resumes_exactly(self, tmp_path, caplog):
        def script(attempt):
            return self.train(attempt, lambda session: session.batches(ahead(range(8))))

        whole_and_stopped(tmp_path, script, 4, 2)
        assert "reads-ahead" not in slugs(caplog.text)

    @pytest.mark.parametrize("every", [2, 3])
    def test_gradient_accumulation_does_not_warn_of_prefetcher(self, every, tmp_path, caplog):
        with pytest.raises(Stopped):
            self.train(Attempt(tmp_path, stop_at=6), lambda session: session.batches(range(8)), every=every)
        assert not slugs(caplog.text)


class TestGeneratorsBeforeBatches:
    MAKERS = (
        lambda: (found := torch.Generator().manual_seed(3), lambda: torch.randperm(6, generator=found).tolist()),
        lambda: (found := np.random.default_rng(3), lambda: found.permutation(6).tolist()),
        lambda: (found := np.random.RandomState(3), lambda: found.permutation(6).tolist()),
        lambda: (found := random.Random(3), lambda: found.sample(range(6), 6)),
    )

    @pytest.mark.parametrize("stops", [(2,), (8, 3), (6,), (14,)], ids=str)
    @pytest.mark.parametrize("make", MAKERS)
    def test_generator_in_extra_repeats_order_of_resumed_epoch(self, make, stops, tmp_path):
        def script(attempt):
            generator, draw = make()
            with attempt.open(extra=generator) as session:
                for _ in session.epochs(3):
                    for number in session.batches(draw()):
                        attempt.update(number)
                        draw()
                    draw()
                return [*attempt.result(session), draw()]

        whole_and_stopped(tmp_path, script, *stops)


class TestSecondRestore:
    """Changes that a script makes before it reaches the saved position are undone there."""

    @staticmethod
    def script(attempt):
        scheduler = torch.optim.lr_scheduler.StepLR(attempt.both, 1, gamma=0.5)
        with attempt.open(scheduler=scheduler) as session:
            with torch.no_grad():
                attempt.model[0].weight.fill_(0.25)
            for epoch in session.epochs(3):
                if epoch:
                    scheduler.step()
                attempt.both.zero_grad(set_to_none=False)
                attempt.both.step()  # only momentum moves the weights
                for passed in range(2):
                    for number in session.batches(range(3)):
                        attempt.update(number + 10 * passed)
                    scheduler.step()
            return attempt.result(session)

    @pytest.mark.parametrize("stops", [(2,), (3,), (5, 1), (6,), (9, 1)], ids=str)
    def test_early_changes_are_undone_within_and_between_epochs(self, stops, tmp_path):
        whole_and_stopped(tmp_path, self.script, *stops)

    def test_early_changes_are_undone_in_completed_run(self, tmp_path):
        expected = self.script(Attempt(tmp_path))
        assert self.script(Attempt(tmp_path))[:2] == expected[:2]

    def test_early_changes_before_steps_are_undone(self, tmp_path):
        @in_session()
        def script(attempt, session):
            for total in (3, 6):
                attempt.both.param_groups[0]["lr"] *= 0.5
                for number in session.steps(total):
                    attempt.update(number)

        for stops in ((2,), (4,), (2, 2)):
            whole_and_stopped(tmp_path / str(stops), script, *stops)


class TestExit:
    @pytest.mark.parametrize("code", [0, None, False])
    @pytest.mark.parametrize("loop", ["epochs", "steps"])
    def test_exit_without_error_completes_run_like_break(self, loop, code, tmp_path):
        def script(attempt):
            with attempt.open() as session:
                for _ in session.epochs(3) if loop == "epochs" else [0]:
                    for number in session.batches(range(5)) if loop == "epochs" else session.steps(5):
                        attempt.update(number)
                        if number == 2:
                            raise SystemExit(code)

        first, second = Attempt(tmp_path), Attempt(tmp_path)
        with pytest.raises(SystemExit) as ended:
            script(first)
        assert ended.value.code is code
        assert read_status(tmp_path).verdict == "done 3 complete"
        script(second)
        assert (first.seen, second.seen) == ([0, 1, 2], [])
        assert read_status(tmp_path).verdict == "done 3 complete"

    @pytest.mark.parametrize("code", [1, "an error"])
    def test_exit_with_error_code_fails_run(self, code, tmp_path):
        @in_session()
        def script(attempt, session):
            for _ in session.steps(5):
                attempt.update()
                sys.exit(code)

        with pytest.raises(SystemExit):
            script(Attempt(tmp_path))
        assert read_status(tmp_path).state == "failed"


def test_epochs_left_by_break_are_not_repeated_by_later_loops(tmp_path):
    @in_session()
    def script(attempt, session):
        for epoch in session.epochs(5):
            for number in session.batches(range(3)):
                attempt.update(10 * epoch + number)
            if epoch == 1:
                break
        for number in session.batches(range(90, 94)):
            attempt.update(number)
        for epoch in session.epochs(4):
            for number in session.batches(range(3)):
                attempt.update(10 * epoch + number)

    seen = whole_and_stopped(tmp_path, script, 4, 5, 3)
    assert seen == [[0, 1, 2, 10], [11, 12, 90, 91, 92], [93, 20, 21], [22, 30, 31, 32]]


class TestScaler:
    @staticmethod
    def script(attempt, *, overflows=()):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with attempt.open(optimizer=[attempt.first, attempt.second], scaler=scaler) as session:
            for epoch in session.epochs(3):
                scaler.scale(attempt.model(torch.ones(1, 2)).mean()).backward()
                for optimizer in (attempt.first, attempt.second):
                    if epoch in overflows:
                        optimizer.param_groups[0]["params"][0].grad[0] = float("inf")
                    scaler.step(optimizer)
                    optimizer.zero_grad()
                scaler.update()
            return session.step

    @pytest.mark.parametrize("overflows", [[], [0, 2]])
    def test_scaler_steps_of_all_optimizers_count_as_one_step(self, overflows, tmp_path, caplog):
        assert self.script(Attempt(tmp_path), overflows=overflows) == 3
        assert "epoch-without-batches" not in slugs(caplog.text)

    def test_step_method_of_scaler_is_restored_on_exit(self, tmp_path):
        scaler = torch.amp.GradScaler("cpu")
        with Attempt(tmp_path).open(scaler=scaler):
            assert "step" in vars(scaler)
        assert "step" not in vars(scaler)
