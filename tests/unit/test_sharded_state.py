"""State of a model that fully_shard has sharded, on one rank: what a checkpoint cannot hold, and other sources."""

import time

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn

from messages import refused
from slipway import Session
from slipway.checkpoint.format import read_checkpoint
from slipway.checkpoint.values import obstacle
from slipway.script.arguments import as_number
from slipway.state.saved_gradients import SavedGradients

pytestmark = pytest.mark.usefixtures("group")


def sharded(seed=0):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 -- takes a second

    torch.manual_seed(seed)
    return fully_shard(nn.Linear(4, 3), mesh=dist.init_device_mesh("cpu", (1,)))


def test_gradients_that_are_not_reduced_are_found():
    model = sharded()
    gradients = SavedGradients({"model": model}, {})
    model(torch.ones(1, 4)).sum().backward()
    assert gradients.unreduced() == []
    model.set_requires_gradient_sync(False)
    model(torch.ones(1, 4)).sum().backward()
    assert gradients.unreduced() == ["model"]
    assert gradients.unreduced(sgd(model)) == ["model"]
    assert gradients.unreduced(sgd(sharded())) == []


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


def train(session, model, optimizer, *, epochs=1, accumulate=1):
    for epoch in session.epochs(epochs):
        for batch in session.batches(range(3)):
            steps = (batch + 1) % accumulate == 0
            model.set_requires_gradient_sync(steps)
            model(torch.full((1, 4), epoch + batch + 1.0)).sum().backward()
            if steps:
                optimizer.step()
                optimizer.zero_grad()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_gradients_left_over_at_the_end_do_not_prevent_the_save_and_are_missed_if_the_run_is_extended(tmp_path):
    model = sharded()
    optimizer = sgd(model)
    with Session(model=model, optimizer=optimizer, folder=tmp_path / "run") as session:
        train(session, model, optimizer, accumulate=2)
    trained = model.weight.full_tensor().clone()
    model = sharded(1)
    optimizer = sgd(model)
    with Session(model=model, optimizer=optimizer, folder=tmp_path / "run") as session:
        train(session, model, optimizer, accumulate=2)
        assert torch.equal(model.weight.full_tensor(), trained)
    with (
        refused("gradients-not-saved", "model"),
        Session(model=model, optimizer=optimizer, folder=tmp_path / "run") as session,
    ):
        train(session, model, optimizer, epochs=2, accumulate=2)


class Average:
    def __init__(self, model):
        self.tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def state_dict(self):
        return self.tensors

    def load_state_dict(self, state_dict):
        self.tensors = state_dict


def test_shards_in_other_objects_are_refused_at_opening(tmp_path):
    model = sharded()
    with (
        refused("unsavable-state", "extra.average", "weight"),
        Session(model=model, extra={"average": Average(model)}, folder=tmp_path / "run"),
    ):
        pass


def test_groups_added_in_an_epoch_are_restored(tmp_path):
    def run(epochs):
        model = sharded()
        optimizer = torch.optim.SGD([model.weight], lr=0.1, momentum=0.9)
        with Session(model=model, optimizer=optimizer, folder=tmp_path / "run", keep=9) as session:
            for epoch in session.epochs(epochs):
                if epoch == 1:
                    optimizer.add_param_group({"params": [model.bias], "lr": 0.2})
                for batch in session.batches(range(3)):
                    model(torch.full((1, 4), batch + 1.0)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        return optimizer.state[model.bias]["momentum_buffer"].full_tensor().clone()

    run(2)
    assert torch.isfinite(run(3)).all()


def test_model_sharded_after_the_opening_is_refused(tmp_path):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        refused("sharded-model", "fully_shard"),
        Session(model=model, optimizer=optimizer, folder=tmp_path / "run") as session,
    ):
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
        optimizer.param_groups[0]["params"] = [*model.parameters()]
        train(session, model, optimizer)


def test_tensors_without_elements_are_restored(tmp_path):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    def make():
        model = nn.Linear(4, 3)
        model.empty = nn.Parameter(torch.empty(0, 2))
        return fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))

    for epochs in (1, 2):
        model = make()
        optimizer = sgd(model)
        with Session(model=model, optimizer=optimizer, folder=tmp_path / "run") as session:
            train(session, model, optimizer, epochs=epochs)
    assert session.step == 6


def test_norm_of_sharded_gradients_can_be_logged():
    model = sharded()
    model(torch.ones(1, 4)).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert as_number("log", "norm", norm) == pytest.approx(15**0.5)


def test_save_at_the_end_of_an_epoch_is_published_before_the_next_step(tmp_path):
    model = sharded()
    optimizer = sgd(model)
    latest = tmp_path / "run" / "checkpoints" / "latest"
    with Session(model=model, optimizer=optimizer, folder=tmp_path / "run") as session:
        for epoch in session.epochs(2):
            deadline = time.monotonic() + 300
            while epoch and not latest.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            for _ in session.batches(range(3)):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()


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
