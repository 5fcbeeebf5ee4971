"""Gradients that wait for an optimizer step: scripts that continue with them, and checkpoints that hold them."""

import pytest
import torch
from torch import nn

from attempts import Attempt, in_session, whole_and_stopped
from slipway import Session

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


def saved(folder):
    """Return whether each checkpoint holds gradients, by step."""
    found = sorted((folder / "checkpoints").glob("step_*"))
    return [int(path.name[5:]) for path in found if (path / "gradients.safetensors").exists()]


def two(attempt):
    return {"first": attempt.first, "second": attempt.second}


class TestExactResume:
    """Each script ends bitwise identical to one that was not stopped."""

    @pytest.mark.parametrize("kind", ["count", "position", "flush"])
    @pytest.mark.parametrize("stops", [(4, 1), (6, 2), (5,)], ids=str)
    def test_leftover_gradients_of_epoch_are_resumed(self, kind, stops, tmp_path):
        @in_session()
        def script(attempt, session):
            pending = 0
            for _ in session.epochs(3):
                for number in session.batches(range(6)):
                    attempt.backward(number)
                    pending = (pending + 1) % 4 if kind == "count" else (session.batch + 1) % 4
                    if pending == 0:
                        attempt.apply()
                if kind == "flush":
                    attempt.apply()
                for number in session.batches(range(2)):
                    attempt.seen.append(attempt.model(torch.full((1, 2), float(number))).item())

        whole_and_stopped(tmp_path, script, *stops)

    def test_added_epochs_continue_with_leftover_gradients(self, tmp_path):
        def script(attempt, epochs):
            with attempt.open() as session:
                for _ in session.epochs(epochs):
                    for number in session.batches(range(6)):
                        attempt.backward(number)
                        if session.batch % 4 == 3:
                            attempt.apply()
            return attempt.result(session)[:2]

        expected = script(Attempt(tmp_path / "whole"), 3)
        script(Attempt(tmp_path / "parts"), 2)
        assert saved(tmp_path / "parts") == [2]
        assert len([*(tmp_path / "parts" / "checkpoints").glob("step_*")]) == 1  # none of the end of the first epoch
        assert script(Attempt(tmp_path / "parts"), 3) == expected

    @pytest.mark.parametrize("loop", ["steps", "batches"])
    @pytest.mark.parametrize("stops", [(1, 1), (2, 2), (3,)], ids=str)
    def test_optimizers_that_step_in_different_iterations_resume_exactly(self, loop, stops, tmp_path):
        def script(attempt):
            with attempt.open(optimizer=two(attempt)) as session:
                for number in session.steps(8) if loop == "steps" else session.batches(range(8)):
                    attempt.backward(number)
                    attempt.backward(number)
                    optimizer = (attempt.first, attempt.second, attempt.first)[number % 3]
                    optimizer.step()
                    optimizer.zero_grad()
                return attempt.result(session)

        whole_and_stopped(tmp_path, script, *(2 * stop for stop in stops))

    @pytest.mark.parametrize("stops", [(1,), (2, 1), (4,)], ids=str)
    @pytest.mark.parametrize("kind", ["never", "late", "some"])
    def test_gradients_without_zero_grad_are_resumed(self, kind, stops, tmp_path):
        @in_session()
        def script(attempt, session):
            for number in session.steps(7):
                if kind == "late" and number:
                    attempt.apply()
                attempt.backward(number)
                if kind == "late":
                    continue
                attempt.both.step()
                if kind == "some":
                    attempt.model[0].zero_grad()
                    attempt.model[2].weight.grad.mul_(0.5)

        whole_and_stopped(tmp_path, script, *stops if kind != "late" else (s + 1 for s in stops))

    @pytest.mark.parametrize("stops", [(2,), (3, 2)], ids=str)
    def test_leftover_gradients_after_several_steps_per_iteration_are_resumed(self, stops, tmp_path):
        @in_session()
        def script(attempt, session):
            for number in session.steps(6):
                for part in range(5):
                    attempt.backward(number + part)
                    if (5 * number + part) % 3 == 2:
                        attempt.apply()

        whole_and_stopped(tmp_path, script, *(5 * stop for stop in stops))

    def test_leftover_gradients_of_plain_inner_loop_are_resumed(self, tmp_path):
        @in_session()
        def script(attempt, session):
            for epoch in session.epochs(4):
                for number in range(5):
                    attempt.backward(number)
                    if (5 * epoch + number) % 3 == 2:
                        attempt.apply()

        whole_and_stopped(tmp_path, script, 2, 3)

    @pytest.mark.parametrize("stops", [(1,), (3,), (4,), (5, 1)], ids=str)
    def test_gradients_of_layer_added_to_optimizer_later_are_resumed(self, stops, tmp_path):
        def script(attempt):
            with attempt.open(optimizer=attempt.first) as session:
                for epoch in session.epochs(3):
                    if epoch == 1:
                        attempt.first.add_param_group({"params": list(attempt.model[2].parameters())})
                    for number in session.batches(range(3)):
                        attempt.first.zero_grad()
                        attempt.backward(number)
                        attempt.first.step()
                return attempt.result(session)

        whole_and_stopped(tmp_path, script, *stops)


class TestCheckpointSize:
    """Without accumulation no checkpoint holds gradients, except the first, before which nothing is known."""

    @staticmethod
    def steps(folder, body, **options):
        attempt = Attempt(folder)
        options = {"optimizer": two(attempt), "checkpoint_steps": 1, "keep": 99, **options}
        with attempt.open(**options) as session:
            for _ in session.epochs(2):
                for number in session.batches(range(3)):
                    body(attempt, number)
                for number in session.batches(range(3)):
                    attempt.model(torch.full((1, 2), float(number)))
        return saved(folder)

    @pytest.mark.parametrize("set_to_none", [True, False])
    def test_zero_grad_before_backward_saves_gradients_only_in_first_checkpoint(self, set_to_none, tmp_path):
        def body(attempt, number):
            for optimizer in (attempt.first, attempt.second):
                optimizer.zero_grad(set_to_none=set_to_none)
            attempt.backward(number)
            nn.utils.clip_grad_norm_(attempt.model.parameters(), 0.1)
            attempt.first.step()
            attempt.second.step()

        assert self.steps(tmp_path, body) == [1]

    @pytest.mark.parametrize("set_to_none", [True, False])
    def test_zero_grad_after_step_saves_no_gradients(self, set_to_none, tmp_path):
        def body(attempt, number):
            attempt.backward(number)
            attempt.first.step()
            attempt.second.step()
            attempt.model.zero_grad(set_to_none=set_to_none)

        assert self.steps(tmp_path, body) == []

    @pytest.mark.parametrize("freezes", [False, True])
    def test_gan_critic_gradients_are_saved_only_in_first_checkpoint(self, freezes, tmp_path):
        def body(attempt, number):
            critic = attempt.model[2].requires_grad_(requires_grad=True)
            attempt.second.zero_grad()
            attempt.backward(number)
            attempt.second.step()
            critic.requires_grad_(requires_grad=not freezes)
            attempt.first.zero_grad()
            attempt.backward(number + 1)
            attempt.first.step()

        assert self.steps(tmp_path, body) == [1]

    def test_several_steps_per_iteration_save_gradients_only_in_first_checkpoint(self, tmp_path):
        def body(attempt, number):
            for optimizer in (attempt.first, attempt.first, attempt.second):
                optimizer.zero_grad()
                attempt.backward(number)
                optimizer.step()

        assert self.steps(tmp_path, body) == [1]

    def test_lbfgs_closure_saves_gradients_only_in_first_checkpoint(self, tmp_path):
        attempt = Attempt(tmp_path)
        optimizer = torch.optim.LBFGS(attempt.model.parameters(), lr=0.1, max_iter=2)

        def closure():
            optimizer.zero_grad()
            loss = attempt.model(torch.ones(1, 2)).square().mean()
            loss.backward()
            return loss

        with attempt.open(optimizer=optimizer, checkpoint_steps=1, keep=99) as session:
            for _ in session.steps(4):
                optimizer.step(closure)
        assert saved(tmp_path) == [1]

    @pytest.mark.parametrize("attempts", [[4], [2, 4]])
    def test_epochs_without_loader_save_gradients_only_in_first_checkpoint(self, attempts, tmp_path):
        for epochs in attempts:
            attempt = Attempt(tmp_path)
            with attempt.open(keep=99) as session:
                for _ in session.epochs(epochs):
                    attempt.update()
        assert saved(tmp_path) == [1]


def test_gradient_hooks_are_removed_when_session_closes(tmp_path):
    attempt = Attempt(tmp_path)
    with attempt.open() as session:
        for _ in session.steps(2):
            attempt.update()
        for _ in session.steps(3):
            assert any(parameter._backward_hooks for parameter in attempt.model.parameters())
            attempt.both.step()
    assert not any(parameter._backward_hooks for parameter in attempt.model.parameters())


def test_optimizer_without_parameter_groups_is_accepted(tmp_path):
    class Plain:
        def __init__(self, model):
            self.model = model

        def step(self):
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.sub_(parameter.grad)

        def state_dict(self):
            return {"kind": "plain"}

        def load_state_dict(self, state_dict):
            pass

    attempt = Attempt(tmp_path)
    plain = Plain(attempt.model)
    with Session(model=attempt.model, optimizer=plain, folder=tmp_path, checkpoint_steps=1) as session:
        for number in session.steps(3):
            attempt.model.zero_grad()
            attempt.backward(number)
            plain.step()
        assert session.step == 3
