"""The function of docs/howto/change-settings.md: a resumed schedule continues as if it had begun at the new rate."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from readme import ROOT

PAGE = (ROOT / "docs" / "howto" / "change-settings.md").read_text(encoding="utf-8")
OLD, NEW, STEPS, RESUMED = 0.1, 0.05, 12, 5
SCHEDULES = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "linear": lambda optimizer: lr_scheduler.LinearLR(optimizer, total_iters=STEPS),
}


def documented_function():
    """Return ``set_base_rate`` as the page defines it."""
    text = PAGE[PAGE.index("def set_base_rate") :].partition("\n\n\n")[0]
    names = {"math": math}
    exec(text, names)  # noqa: S102 -- what the page has its reader write
    return names["set_base_rate"]


def objects(schedule, rate):
    """Return an optimizer with two groups, the second at a tenth of the rate, and its scheduler."""
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [parameters[0]]}, {"params": [parameters[1]], "lr": rate / 10}], lr=rate)
    return optimizer, SCHEDULES[schedule](optimizer)


def advance(optimizer, scheduler, count):
    """Return the rates of both groups after each of ``count`` steps."""
    rates = []
    for _ in range(count):
        optimizer.step()
        scheduler.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
    return rates


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_documented_function_continues_schedule_at_new_rate(schedule):
    whole = advance(*objects(schedule, NEW), STEPS)
    saved = objects(schedule, OLD)
    advance(*saved, RESUMED)
    optimizer, scheduler = objects(schedule, NEW)
    optimizer.load_state_dict(saved[0].state_dict())
    scheduler.load_state_dict(saved[1].state_dict())
    assert optimizer.param_groups[0]["lr"] != pytest.approx(whole[RESUMED - 1][0])
    for _ in range(2):  # the second call changes nothing
        documented_function()(optimizer, scheduler, NEW)
    assert torch.tensor(advance(optimizer, scheduler, STEPS - RESUMED)).allclose(torch.tensor(whole[RESUMED:]))
