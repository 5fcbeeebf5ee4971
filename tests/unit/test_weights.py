"""Initial weights of a session: accepted files, and errors for others."""

import errno
import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.torch_version import TorchVersion

from messages import refused
from ranks import on_ranks
from slipway import Session
from slipway.capture.weights import read_weights
from slipway.checkpoint.stateful import restore
from slipway.dist.collectives import run_on_root
from slipway.state.model_state import Model

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


def built():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def tensors():
    """Return a state_dict of ``built`` that no initialization produces."""
    return {name: torch.full_like(value, 7) for name, value in built().state_dict().items()}


def saved(path, content):
    (save_file if path.suffix == ".safetensors" else torch.save)(content, path)
    return path


def opened(folder, model, weights):
    """Return what a session in ``folder`` finds in ``model`` at its start; it trains one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with Session(model=model, optimizer=optimizer, folder=folder, weights=weights) as session:
        found = {name: value.clone() for name, value in model.state_dict().items()}
        for _ in session.steps(1):
            model(torch.ones(2, 2)).sum().backward()
            optimizer.step()
    return found


def alike(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "weights.safetensors"])
def test_run_starts_from_weights_file_and_resumes_from_checkpoint(name, tmp_path):
    path = saved(tmp_path / name, tensors())
    assert alike(opened(tmp_path / "run", built(), path), tensors())
    path.unlink()
    model = built()
    opened(tmp_path / "run", model, path)
    assert not alike(model.state_dict(), tensors())


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": tensors(), "epoch": 3},
        {"model_state_dict": tensors(), "optimizer_state_dict": {"lr": 0.1}},
        {"model": {f"module.{name}": value for name, value in tensors().items()}},
        {f"module._orig_mod.{name}": value for name, value in tensors().items()},
        {f"_orig_mod.{name}": value for name, value in tensors().items()},
    ],
)
def test_nested_and_prefixed_state_dicts_are_loaded(content, tmp_path):
    assert alike(opened(tmp_path / "run", built(), saved(tmp_path / "weights.pt", content)), tensors())


def test_prefix_that_model_also_has_is_kept(tmp_path):
    model = nn.ModuleDict({"module": built()})
    content = {f"module.{name}": value for name, value in tensors().items()}
    path = saved(tmp_path / "weights.pt", content)
    Session(model=model, folder=tmp_path / "run", weights=path).__enter__().__exit__(None, None, None)
    assert alike(model.state_dict(), content)


def test_weights_may_be_given_per_model(tmp_path):
    models = {"generator": nn.Linear(1, 1), "critic": nn.Linear(1, 1)}
    before = models["critic"].weight.item()
    state = {"weight": torch.full((1, 1), 3.0), "bias": torch.full((1,), 4.0)}
    weights = {"generator": str(saved(tmp_path / "generator.safetensors", state))}
    with Session(model=models, folder=tmp_path / "run", weights=weights):
        assert alike(models["generator"].state_dict(), state)
        assert models["critic"].weight.item() == before
    for wrong in (weights["generator"], {"actor": weights["generator"]}):
        with refused("session-arguments", "weights", "model.generator, model.critic"):
            Session(model=models, weights=wrong)


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (tensors() | {"0.weight": torch.zeros(5, 2)}, ["model", "0.weight", [5, 2], [3, 2]]),
        ({"0.weight": torch.zeros(3, 2)}, ["0.bias", "1.weight", 3]),
        ([torch.zeros(1)], ["state_dict"]),
        ({"epoch": 3}, ["state_dict"]),
    ],
)
def test_mismatched_weights_are_refused_with_tensor_names(content, values, tmp_path):
    path = saved(tmp_path / "weights.pt", content)
    with refused("bad-weights", path, *values, code=78):
        opened(tmp_path / "run", built(), path)


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_unreadable_weights_file_is_refused(name, tmp_path):
    with refused("bad-weights", tmp_path / name) as error:
        opened(tmp_path / "run", built(), tmp_path / name)
    assert os.strerror(errno.ENOENT).lower() in str(error.value).lower()
    (tmp_path / name).write_bytes(b"no weights")
    with refused("bad-weights", tmp_path / name):
        opened(tmp_path / "run", built(), tmp_path / name)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)  # that is never written to
    with refused("bad-weights", tmp_path / name) as error:
        opened(tmp_path / "run", built(), tmp_path / name)
    assert error.value.__cause__.__cause__.errno == errno.EINVAL


def test_vulnerable_torch_version_refuses_pickled_weights(tmp_path, monkeypatch):
    pickled = saved(tmp_path / "weights.pt", tensors())
    plain = saved(tmp_path / "weights.safetensors", tensors())
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1+cu128"))
    with refused("bad-weights", pickled, "2.9.1", "CVE-2026-24747", "2.10", "save_file"):
        opened(tmp_path / "run", built(), pickled)
    opened(tmp_path / "run", built(), plain)


def test_all_ranks_get_weights_or_error_of_rank_0(tmp_path):
    path = saved(tmp_path / "weights.pt", tensors())

    def begin(comm):
        file = path if comm.world.is_root else tmp_path / "of another node"
        models = {"model": Model("model", built())}
        restore(models, run_on_root(comm, lambda: read_weights({"model": file}, models)), comm)
        return models["model"].state_dict()

    assert all(alike(found, tensors()) for found in on_ranks(3, begin))

    def fail(comm):
        with refused("bad-weights", tmp_path / "gone"):
            run_on_root(comm, lambda: read_weights({"model": tmp_path / "gone"}, {"model": Model("model", built())}))

    on_ranks(3, fail)
