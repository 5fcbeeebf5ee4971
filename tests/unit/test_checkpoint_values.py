"""State that a checkpoint cannot hold: refused when the session opens, or at the first save that finds it."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from attempts import Attempt
from messages import refused, slugs
from slipway import Session, Stopped
from slipway.base.errors import SlipwayError
from slipway.checkpoint.stateful import split
from slipway.checkpoint.values import obstacle
from slipway.run.status import read_status

pytestmark = pytest.mark.usefixtures("agree_after_each_step")

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


class Named(torch.Tensor):
    """A subclass that stores its data as a tensor does."""


class Scaled(torch.Tensor):
    """A wrapper subclass like those of quantized optimizers: two tensors that act as one."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data, scale):
        self.data_, self.scale = data, scale

    @classmethod
    def __torch_dispatch__(cls, operation, kinds, args=(), kwargs=None):
        if operation is torch.ops.aten.detach.default:
            return cls(args[0].data_, args[0].scale)
        raise NotImplementedError(operation)


def scaled():
    return Scaled(torch.ones(2, dtype=torch.int8), torch.ones(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_is_refused_exactly_if_safetensors_cannot_restore_it(dtype, tmp_path):
    try:
        tensor = torch.empty(2, dtype=dtype)
        save_file({"a": tensor}, tmp_path / "a.safetensors")
        kept = load_file(tmp_path / "a.safetensors")["a"].dtype == dtype
    except Exception:  # noqa: BLE001 -- whatever torch and safetensors raise
        kept = False
        tensor = torch.quantize_per_tensor(torch.rand(2), 0.1, 0, dtype) if str(dtype).startswith("torch.q") else None
    if tensor is not None:
        assert (not obstacle(tensor)) == kept


OBSTACLES = {
    "sparse": lambda: torch.eye(2).to_sparse(),
    "sparse rows": lambda: torch.eye(2).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.qint8),
    "complex128": lambda: torch.ones(2, dtype=torch.complex128),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1)]),
    "mkldnn": lambda: torch.ones(2).to_mkldnn(),
    "meta": lambda: torch.ones(2, device="meta"),
    "expanded": lambda: torch.ones(1).expand(3),
    "wrapper subclass": scaled,
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_unsavable_buffer_is_refused_when_session_opens(case, tmp_path):
    model = nn.Sequential(nn.Linear(2, 1))
    model[0].register_buffer("table", OBSTACLES[case]())
    slug = "meta-tensors" if case == "meta" else "unsavable-state"
    with refused(slug, "model: 0.table"), Session(model=model, folder=tmp_path / "run"):
        pass
    assert not (tmp_path / "run" / "checkpoints").exists() or not [*(tmp_path / "run" / "checkpoints").iterdir()]


def test_tensor_subclass_is_saved_only_in_modules():
    tensor = torch.ones(2).as_subclass(Named)
    model = nn.Linear(2, 1)
    model.weight = nn.Parameter(torch.ones(1, 2).as_subclass(Named))
    split(model.state_dict(), "model", restored_in_place=True)
    with refused("unsavable-state", "optimizer", "'exp_avg'", "Named"):
        split({"state": {0: {"exp_avg": tensor}}}, "optimizer")


class Compressed(torch.optim.SGD):
    """SGD whose state gets a wrapper-subclass tensor after some steps."""

    def __init__(self, parameters, *, after):
        super().__init__(parameters, lr=0.1)
        self.left = after

    def step(self, closure=None):
        super().step(closure)
        self.left -= 1
        if self.left == 0:
            self.state[self.param_groups[0]["params"][0]]["exp_avg"] = scaled()


def train(folder, *, after, stop_at=None):
    attempt = Attempt(folder, stop_at)
    attempt.both = Compressed(attempt.model.parameters(), after=after)
    with attempt.open(checkpoint_steps=1) as session:
        for _ in session.steps(4):
            attempt.update()


def test_unsavable_state_at_first_step_ends_attempt(tmp_path):
    with refused("unsavable-state", "optimizer", "'exp_avg'", "Scaled"):
        train(tmp_path / "run", after=1)
    assert read_status(tmp_path / "run").verdict.startswith("failed")


@pytest.mark.parametrize("stop_at", [3, None])
def test_unsavable_state_after_first_save_warns_and_fails_at_end(stop_at, tmp_path, caplog):
    with pytest.raises(SlipwayError) as caught:
        train(tmp_path / "run", after=2, stop_at=stop_at)
    assert caught.value.slug == "unsavable-state"
    assert not isinstance(caught.value, Stopped)
    assert set(slugs(caplog.text)) == {"unsavable-state"}
    assert (tmp_path / "run" / "checkpoints" / "latest").resolve().name == "step_00000001"
