"""Fused optimizers under GradScaler: a skipped step has no effect, and parameters may be added at any step."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fused_steps
from fused_steps import CASES, SKIPPED, TOLERANCE, are_equal, largest_difference, ours, steps, torchs
from trainer.optim.fused_sgd import FusedSGD

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan():
    with fused_steps.unwritten_memory_is_nan():
        yield


def test_cases_cover_all_fused_optimizers_of_torch():
    assert {cls for cls, _ in CASES.values()} == fused_steps.fused_optimizers()


@pytest.mark.parametrize("late", [1, 2, 3])
@pytest.mark.parametrize("label", SKIPPED)
@pytest.mark.parametrize("name", CASES)
def test_skipped_fused_step_has_no_effect(name, label, late):
    skipped = SKIPPED[label]
    never_tried = steps(ours(name), CPU, left_out=skipped, late=late)
    by_foreach = steps(torchs(name, "foreach"), CPU, skipped=skipped, late=late)
    for unscale in (False, True):
        found = steps(ours(name), CPU, skipped=skipped, late=late, unscale=unscale)
        assert are_equal(found, never_tried), unscale
        assert largest_difference(found, by_foreach) <= TOLERANCE, unscale


def test_only_torch_fused_sgd_is_wrong_after_skipped_first_step(table):
    """FusedSGD and the Session's warning are needed as long as this test passes."""
    rows = list(fused_steps.rows(CPU))
    head = ("fused against foreach", "skipped", "torch", "trainer")
    table("Fused optimisers under GradScaler", [head, *((*row[:2], *map("{:.1e}".format, row[2:])) for row in rows)])
    for row in rows:
        assert row.trainer <= TOLERANCE, row
        assert (row.torch <= TOLERANCE) != fused_steps.is_faulty_in_torch(row), row


@pytest.mark.parametrize("late", [2, 3])
def test_fused_sgd_of_torch_rejects_parameter_added_later(late):
    with pytest.raises(TypeError):
        steps(torchs("sgd, momentum", "fused"), CPU, late=late)


class HostReads(TorchDispatchMode):
    """Counts the values that are read from a device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize(("momentum", "expected"), [(0.9, [1, 1, 0, 0]), (0.0, [0, 0, 0, 0])])
def test_fused_sgd_syncs_host_only_until_first_step_is_taken(momentum, expected, unused):
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = FusedSGD(parameters, momentum=momentum, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    reads = []
    for step in range(4):
        for parameter in parameters[unused:]:
            parameter.grad = torch.full((3,), torch.inf if step == 0 else 1.0)
        scaler.scale(torch.ones(()))
        with HostReads() as mode:
            scaler.step(optimizer)
        scaler.update()
        reads.append(mode.count)
    assert reads == expected


def test_parameter_groups_keep_settings_and_order():
    first, second, third = (nn.Parameter(torch.ones(2)) for _ in range(3))
    groups = [{"params": [first, third]}, {"params": [second], "lr": 0.25, "momentum": 0.0}]
    optimizer = FusedSGD(groups, lr=0.5, momentum=0.5, fused=True)
    for step in range(2):
        for parameter in (first, second, third)[: 2 + step]:
            parameter.grad = torch.ones(2)
        optimizer.step()
    assert [group["params"] for group in optimizer.param_groups] == [[first, third], [second]]
    assert [value[0].item() for value in (first, second, third)] == [1 - 0.5 - 0.75, 1 - 0.25 - 0.25, 1 - 0.5]
    assert optimizer.state.keys() == {first, third}


def test_closure_computes_gradients_of_step():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = FusedSGD([parameter], lr=0.5, momentum=0.5, fused=True)

    def closure():
        optimizer.zero_grad()
        loss = parameter.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2
    assert parameter.tolist() == [0.5, 0.5]
