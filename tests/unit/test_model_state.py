"""Models in a checkpoint: names of plain torch, any shapes that their modules load, complete state."""

import copy

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.nn.parallel import DistributedDataParallel

from messages import assert_warning, refused, slugs
from ranks import CPU
from savers import restore, through_disk
from slipway.capture.weights import fitted
from slipway.checkpoint import stateful
from slipway.dist.communicator import Alone
from slipway.state.named_objects import component
from slipway.state.wrappers import replicas_in

GROUP = pytest.mark.usefixtures("group")


class Range(nn.Module):
    """A buffer with the size of the first batch that loads in any size."""

    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.empty(0))

    def forward(self, inputs):
        seen = inputs.detach().abs().amax(0)
        self.most = torch.maximum(self.most, seen) if self.most.numel() else seen
        return inputs / self.most

    def _load_from_state_dict(self, state, prefix, *rest):
        if prefix + "most" in state:
            self.most = state[prefix + "most"].clone()
        super()._load_from_state_dict(state, prefix, *rest)


class Scaled(nn.Linear):
    """An extra state that is a tensor after the first pass."""

    seen = None

    def forward(self, inputs):
        self.seen = inputs.detach().abs().amax(0)
        return super().forward(inputs)

    def get_extra_state(self):
        return torch.empty(0) if self.seen is None else self.seen

    def set_extra_state(self, state):
        self.seen = state if state.numel() else None


class Tables(nn.Module):
    """A buffer that is None until the first pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", None)
        self.layer = nn.Linear(4, 1)

    def forward(self, inputs):
        if self.table is None:
            self.table = inputs.detach().mean(0)
        return self.layer(inputs - self.table)


def quantized():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    return quantization.prepare_qat(model.train())


def lazy_in_part():
    """Return a model with an unused, uninitialized part."""
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.LazyLinear(1))
    model.register_module("unused", nn.LazyLinear(2))
    model.forward = lambda inputs: model[2](model[1](model[0](inputs)))
    return model


CHANGING = {
    "observers of quantization": quantized,
    "buffer with code for loading": lambda: nn.Sequential(Range(), nn.Linear(4, 1)),
    "extra state": lambda: nn.Sequential(Scaled(4, 1)),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(3), nn.LazyConv1d(2, 1), nn.Flatten(0), nn.LazyLinear(1)),
    "lazy in part": lazy_in_part,
    "buffer that was None": Tables,
}


def bytes_of(model):
    return {
        name: value if nn.parameter.is_lazy(value) else (value.dtype, value.tolist())
        for name, value in model.state_dict().items()
        if not nn.parameter.is_lazy(value)
    }


@pytest.mark.parametrize("case", CHANGING)
def test_state_with_changed_shapes_is_loaded_by_modules(case, tmp_path, caplog):
    torch.manual_seed(0)
    first, second = CHANGING[case](), CHANGING[case]()
    part = component("model", first)
    first(torch.rand(2, 4))
    restore(second, through_disk({"model": part}, tmp_path))
    assert slugs(caplog.text) == []
    assert bytes_of(second) == bytes_of(first)
    inputs = torch.rand(2, 4)
    assert torch.equal(second(inputs), first(inputs))


def remove_buffer(model):
    del model[1].running_mean


CHANGED = {
    "0.weight": lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(5, 4))),
    "0.added": lambda model: model[0].register_buffer("added", torch.zeros(2)),
    "2.weight": lambda model: model.append(nn.Linear(1, 1)),
    "1.running_mean": remove_buffer,
    # whose module has code for loading, but not for this
    "1.running_var": lambda model: setattr(model[1], "running_var", torch.ones(7)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_unloadable_model_change_warns_at_save_and_fails_at_open(name, tmp_path, caplog):
    def build():
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    model = build()
    part = component("model", model)
    CHANGED[name](model)
    found = through_disk({"model": part}, tmp_path)
    part.state_dict()
    assert slugs(caplog.text) == ["unresumable-state"]
    assert_warning(caplog.text, "unresumable-state", "model", name)
    with refused("different-state", "model", name):
        restore(build(), found)


def test_model_changed_before_session_is_not_reported(tmp_path, caplog):
    first, second = (nn.Sequential(nn.Linear(4, 3)) for _ in range(2))
    part = component("model", first)
    first.append(nn.Linear(1, 1))
    found = through_disk({"model": part}, tmp_path)
    caplog.clear()
    second.append(nn.Linear(1, 1))
    part = component("model", second)
    stateful.restore({"model": part}, found, Alone(CPU))
    part.state_dict()
    assert slugs(caplog.text) == []


def test_different_dtype_is_refused_when_training_continues():
    part = component("model", nn.Linear(2, 1))
    state = nn.Linear(2, 1).double().state_dict()
    part.load_state_dict(state)  # the script may convert its model after this
    with refused("different-state", "model", "weight", torch.float64, torch.float32):
        part.load_state_dict(state)


def test_error_in_load_state_dict_names_component(tmp_path):
    class Picky(dict):
        def state_dict(self):
            return {"a": 1}

        def load_state_dict(self, state_dict):
            return state_dict["b"]

    found = through_disk({"extra": Picky()}, tmp_path)
    with refused("different-state", "extra", "'b'"):
        restore({"extra": Picky()}, found)


class Blocks(nn.ModuleDict):
    """Two parts, one of which has two."""

    def forward(self, inputs):
        return self["head"](self["encoder"](inputs))


def blocks():
    torch.manual_seed(0)
    return Blocks({"encoder": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "head": nn.Linear(2, 1)})


def compiled(model):
    model["encoder"][0] = torch.compile(model["encoder"][0], backend="eager")
    model["head"] = torch.compile(model["head"], backend="eager")
    return model


def replicated(model):
    model["encoder"] = DistributedDataParallel(model["encoder"])
    return model


def replicated_in_an_attribute(model):
    model.head = DistributedDataParallel(torch.compile(model.pop("head"), backend="eager"))
    return model


WRAPPED = {
    "compiled": compiled,
    "replicated": replicated,
    "both": lambda model: replicated(compiled(model)),
    "all of it": lambda model: torch.compile(DistributedDataParallel(compiled(model)), backend="eager"),
    "an attribute": replicated_in_an_attribute,
    "data parallel": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
    "neither": lambda model: model,
}


@pytest.mark.parametrize("later", WRAPPED)
@pytest.mark.parametrize("before", WRAPPED)
@GROUP
def test_wrapped_and_plain_models_load_each_others_checkpoints(before, later, tmp_path):
    first, second = WRAPPED[before](blocks()), WRAPPED[later](blocks())
    expected = blocks()
    with torch.no_grad():
        for each in (*first.parameters(), *expected.parameters()):
            each.fill_(3)
    found = through_disk({"model": component("model", first)}, tmp_path)
    assert found.tensors["model"].keys() == expected.state_dict().keys()
    blocks().load_state_dict(found.tensors["model"])
    restore(second, found)
    assert all(bool((parameter == 3).all()) for parameter in second.parameters())


def test_checkpoint_with_wrapper_prefixes_loads():
    """Written by a version that saved them."""
    first, second = compiled(blocks()), compiled(blocks())
    with torch.no_grad():
        first["head"].weight.fill_(3)
    component("model", second).load_state_dict(first.state_dict())
    assert torch.equal(second["head"].weight, first["head"].weight)


def test_prefixes_are_stripped_only_for_wrappers():
    model = nn.ModuleDict({"module": nn.ModuleDict({"_orig_mod": nn.Linear(1, 1)})})
    model["module"]["layer"] = torch.compile(nn.Linear(1, 1), backend="eager")
    names = component("model", model).state_dict().keys()
    assert [*names] == [
        *(f"module.{part}.{tensor}" for part in ("_orig_mod", "layer") for tensor in ("weight", "bias"))
    ]


@GROUP
def test_wrapped_weights_fit_plain_model_and_reverse():
    plain, wrapped = blocks().state_dict(), replicated(compiled(blocks())).state_dict()
    assert fitted(wrapped, plain).keys() == plain.keys()
    assert fitted(plain, wrapped).keys() == wrapped.keys()
    ambiguous = {"a.weight": torch.ones(1), "module.a.weight": torch.zeros(1)}
    assert fitted(ambiguous, ambiguous) == ambiguous


@GROUP
def test_ddp_replicas_are_found_in_model_parts():
    assert len(replicas_in(replicated(blocks()))) == 1
    assert replicas_in(blocks()) == replicas_in(object()) == []


def fully_sharded(model):
    from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: PLC0415 -- takes a second

    return FullyShardedDataParallel(model, device_id=CPU)


def part_of(shard):
    def wrap(model):
        model["encoder"] = shard(model["encoder"])
        return model

    return wrap


def deepspeed_engine(model):
    return type("DeepSpeedEngine", (Around,), {})(model)


class Around(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


@pytest.mark.parametrize("shard", [fully_sharded, deepspeed_engine])
@pytest.mark.parametrize("around", [lambda s: s, lambda s: lambda m: torch.compile(s(m), backend="eager"), part_of])
@GROUP
def test_models_and_parts_with_hidden_parameters_are_refused(shard, around):
    with refused("sharded-model", "model"):
        component("model", around(shard)(blocks()))


@GROUP
def test_sharded_optimizer_is_refused():
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415

    optimizer = ZeroRedundancyOptimizer(blocks().parameters(), torch.optim.SGD, lr=0.1)
    with refused("sharded-model", "optimizer", "ZeroRedundancyOptimizer"):
        component("optimizer", optimizer)


def test_saving_does_not_change_module_state():
    model = nn.Sequential(Range())
    part = component("model", model)
    model(torch.rand(2, 4))
    before = copy.deepcopy(model.state_dict())
    part.state_dict()
    assert torch.equal(model.state_dict()["0.most"], before["0.most"])
