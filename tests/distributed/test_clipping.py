"""slipway.clip_grad_norm_: equal to torch's function on the unsharded model, also over several meshes."""

import json
import math

import pytest
import torch
from torch import nn

from session_runs import finish
from slipway import clip_grad_norm_

ONE_MESH = {"plain", "data", "replicas"}


def test_norm_and_clipped_gradients_are_those_of_the_unsharded_model(tmp_path):
    said = finish("clipping", 4, [], tmp_path / "run")
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    found = json.loads(line)
    assert len(found) == 8
    for kind, of_kind in found.items():
        for order in ("1", "2", "3", "inf"):
            result = of_kind[order]
            assert result["norm"] == pytest.approx(result["expected"], rel=1e-5), (kind, order)
            assert result["norm"] > 0.02, (kind, order)  # above the limit: the gradients were clipped
            assert result["apart"] < 1e-7, (kind, order)
            assert result["type"] == "Tensor"
        assert of_kind["unchanged"], kind
        assert of_kind["kept"] == of_kind["2"]["norm"], kind
        assert of_kind["raised for nan"] == "RuntimeError", kind
        assert of_kind["nan"], kind
    raised = {kind for kind, of_kind in found.items() if of_kind["raised by torch"]}
    assert raised == found.keys() - ONE_MESH  # else this function is not needed any more


def test_same_as_torch_without_gradients_and_for_one_tensor():
    assert clip_grad_norm_([], 1.0) == nn.utils.clip_grad_norm_([], 1.0) == 0
    assert clip_grad_norm_(nn.Linear(2, 2).parameters(), 1.0) == 0
    tensor = nn.Parameter(torch.ones(4))
    tensor.grad = torch.full((4,), 3.0)
    assert clip_grad_norm_(tensor, 2.0, norm_type=math.inf, foreach=False) == 3
    assert torch.allclose(tensor.grad, torch.full((4,), 2.0))
