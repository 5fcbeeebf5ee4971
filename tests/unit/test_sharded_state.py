"""State of a model that fully_shard has sharded, on one rank: what a checkpoint cannot hold, and other sources."""

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn

from messages import refused
from slipway import Session
from slipway.checkpoint.format import read_checkpoint
from slipway.checkpoint.values import obstacle
from slipway.state.saved_gradients import SavedGradients

pytestmark = pytest.mark.usefixtures("group")


def sharded(seed=0):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 -- takes a second

    torch.manual_seed(seed)
    return fully_shard(nn.Linear(4, 3), mesh=dist.init_device_mesh("cpu", (1,)))


def test_gradients_that_are_not_reduced_are_refused():
    model = sharded()
    gradients = SavedGradients({"model": model}, {})
    model(torch.ones(1, 4)).sum().backward()
    gradients.require_reduced()
    model.set_requires_gradient_sync(False)
    model(torch.ones(1, 4)).sum().backward()
    with refused("unsavable-state", "model"):
        gradients.require_reduced()


def test_partial_sums_cannot_be_saved():
    from torch.distributed.tensor import DTensor, Partial, Replicate  # noqa: PLC0415

    mesh = dist.init_device_mesh("cpu", (1,))
    assert "Partial" in obstacle(DTensor.from_local(torch.ones(2), mesh, [Partial()]))
    assert obstacle(DTensor.from_local(torch.ones(2), mesh, [Replicate()])) == ""


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_sharded_model_takes_initial_weights_from_file(suffix, tmp_path):
    weights = {"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.ones(3)}
    path = tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(weights, path)
    model = sharded()
    with Session(model=model, weights=path, folder=tmp_path / "run"):
        assert torch.equal(model.weight.full_tensor(), weights["weight"])


def test_tied_weights_are_saved_once(tmp_path):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Session(model=model, optimizer=optimizer, folder=tmp_path / "run") as session:
        for _ in session.steps(1):
            model(torch.tensor([1])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step_*")
    assert [tensor.numel() for tensor in load_file(checkpoint / "shards.0.safetensors").values()] == [20]
    assert {name: tensor.shape for name, tensor in read_checkpoint(checkpoint).whole("model").items()} == {
        "0.weight": (5, 4),
        "1.weight": (5, 4),
    }


def test_sharded_model_gets_best_weights(tmp_path):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with Session(model=model, optimizer=optimizer, folder=tmp_path / "run", best="score") as session:
        for epoch in session.epochs(3):
            for _ in session.batches(range(2)):
                optimizer.zero_grad()
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
            seen.append(model.weight.full_tensor().clone())
            session.metrics(score=-abs(epoch - 1))
        assert session.load_best() == 0
        assert torch.equal(model.weight.full_tensor(), seen[1])
        assert not torch.equal(seen[1], seen[2])
