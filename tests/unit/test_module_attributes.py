"""State of modules outside their state_dict is restored: frozen layers, attributes, non-persistent buffers."""

import copy
import itertools
import logging
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel

from attempts import whole_and_stopped
from messages import assert_warning, slugs
from slipway.checkpoint.stateful import join, split
from slipway.rng.loader_generators import is_generator
from slipway.rng.seeding import state_digest
from slipway.state.module_attributes import SMALL, ModuleAttributes

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


class Range(NamedTuple):
    low: float
    tensor: torch.Tensor | None = None


class Part(nn.Module):
    """A module with everything that ``state_dict`` omits."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.normal = nn.BatchNorm1d(2)
        self.rate, self.steps, self.mode, self.limit = 0.5, 0, "warm", None
        self.seen, self.table, self.counts = [], {"a": (1, [2.0])}, Counter()
        self.array, self.number = np.zeros(2), np.float64(0)
        self.hidden = torch.zeros(2)
        self.pair = [torch.zeros(1), torch.zeros(1)]
        self.leaf = torch.zeros(2, requires_grad=True)
        self.register_buffer("mask", torch.zeros(2), persistent=False)
        self.register_buffer("later", None, persistent=False)
        self.function = torch.relu
        self.kinds, self.fixed, self.range = {"a"}, frozenset({1}), Range(0.0)
        self.last, self.window = deque([torch.zeros(1)] * 3, maxlen=3), deque(maxlen=2)
        self.lists, self.ordered = defaultdict(list), OrderedDict(a=1)
        self.torch, self.numpy = torch.Generator().manual_seed(0), np.random.default_rng(0)
        self.random, self.state = random.Random(0), np.random.RandomState(0)
        self.several = {"a": [torch.Generator().manual_seed(1)], "b": 0}


def flags(model):
    for parameter in model.layer.parameters():
        parameter.requires_grad_(False)


def frozen_statistics(model):
    model.normal.eval()
    model.normal.momentum = 0.01


def plain(model):
    model.rate, model.steps, model.mode, model.limit = 0.25, 7, "cold", (1, 2)


def contents(model):
    model.seen.append(3.5)
    model.table["a"][1].append(4)
    model.table["b"] = None
    model.counts["x"] += 2


def of_numpy(model):
    model.array += 1
    model.number += 2


def tensors(model):
    model.hidden = torch.tensor([1.0, 2.0])
    model.pair[1] = torch.ones(3)
    model.leaf.data += 1
    model.carried = torch.ones(2, 2, dtype=torch.float64)


def buffers(model):
    model.mask += 1
    model.later = torch.ones(2)
    model.register_buffer("added", torch.ones(1), persistent=False)


def containers(model):
    model.kinds |= {(1, 2), b"b"}
    model.fixed, model.range = frozenset({2, None}), Range(1.0, torch.ones(2))
    model.last.append(torch.ones(1))
    model.last[0] = torch.full((1,), 2.0)
    model.window.extend([1, 2, 3])
    model.lists["x"].append({3})
    model.ordered["b"] = model.ordered.pop("a")
    model.ordered["a"] = 2
    model.made = deque([{1}], maxlen=4)


def generators(model):
    draw(model)
    model.made = torch.Generator().manual_seed(3)
    model.made_too = [np.random.Generator(np.random.Philox(3)), random.Random(4), np.random.RandomState(5)]


def draw(model):
    return [
        torch.rand(2, generator=model.torch).tolist(),
        model.numpy.random(2).tolist(),
        model.random.gauss(0, 1),
        model.state.randn(),
        torch.rand(1, generator=model.several["a"][0]).item(),
    ]


def resized(model):
    model.mask = torch.ones(5)


CHANGES = {
    change.__name__: change
    for change in (
        *(flags, frozen_statistics, plain, contents, of_numpy, tensors, buffers, resized),
        *(containers, generators),
    )
}


def content(model):
    found = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for path, module in model.named_modules():
        values = {**vars(module), **module._buffers}
        skipped = vars(nn.Module()).keys() - {"training"}
        found |= {f"{path}.{name}": shown(value) for name, value in values.items() if name not in skipped}
    return found


def shown(value):
    """Return a text that is equal for equal values, with generator states and sorted sets."""
    if is_generator(value):
        return f"{type(value)} {state_digest(value)}"
    if isinstance(value, (list, tuple, deque)):
        return f"{type(value)} {getattr(value, 'maxlen', '')} {[*map(shown, value)]}"
    if isinstance(value, (set, frozenset)):
        return f"{type(value)} {sorted(map(shown, value))}"
    return (
        f"{type(value)} {[*zip(value, map(shown, value.values()), strict=True)]}"
        if isinstance(value, dict)
        else repr(value)
    )


def attached(model):
    """Return a model and the component that saves its attributes."""
    return model, ModuleAttributes({"model": model})


def saved(part):
    return copy.deepcopy(join(*split(part.state_dict(), "attributes")))


@pytest.mark.parametrize("change", CHANGES)
def test_changed_module_attributes_are_restored(change):
    (first, one), (second, two) = attached(Part()), attached(Part())
    CHANGES[change](first)
    state = saved(one)
    for _ in range(2):
        two.load_state_dict(state)
        assert content(second) == content(first)
    assert repr(saved(two)) == repr(state)


def test_unchanged_attributes_are_not_saved():
    model, part = attached(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)))
    model(torch.ones(2, 2)).sum().backward()
    assert saved(part) == {}
    model.eval()
    state = saved(part)
    assert [*state] == ["values"]
    model.train()
    assert saved(part) == {}


def test_lists_buffers_and_tensors_are_restored_in_place():
    model, part = attached(Part())
    state = saved(part)
    seen, mask, hidden, table = model.seen, model.mask, model.hidden, model.table
    contents(model)
    buffers(model)
    changed = saved(part)
    model.seen.clear()
    mask.zero_()
    part.load_state_dict(changed)
    assert (model.seen is seen, model.mask is mask, model.hidden is hidden, model.table is table) == (True,) * 4
    assert (seen, mask.tolist()) == ([3.5], [1, 1])
    part.load_state_dict(state)
    assert mask.tolist() == [0, 0]


def test_containers_and_generators_are_restored_in_place():
    (first, one), (second, two) = attached(Part()), attached(Part())
    names = ("kinds", "last", "window", "lists", "ordered", "torch", "numpy", "random", "state")
    before = {name: getattr(second, name) for name in names}
    containers(first)
    generators(first)
    two.load_state_dict(saved(one))
    assert all(getattr(second, name) is value for name, value in before.items())
    assert draw(second) == draw(first)
    assert second.lists["new"] == []


def test_aliased_tensors_are_restored_with_separate_values():
    (first, one), (second, two) = attached(Part()), attached(Part())
    first.last = deque([torch.tensor([float(number)]) for number in range(3)], maxlen=3)
    two.load_state_dict(saved(one))
    assert [tensor.item() for tensor in second.last] == [0, 1, 2]


def unseeded_generator():
    model = nn.Linear(1, 1)
    model.noise = np.random.default_rng()
    return model


def unseeded_tensors():
    model = nn.Linear(2, 2)
    model.register_buffer("features", torch.randn(4), persistent=False)
    model.noise = torch.randn(2)
    return model


@pytest.mark.parametrize("build", [unseeded_generator, unseeded_tensors])
def test_unseeded_generators_and_tensors_are_restored(build):
    (first, one), (second, two) = attached(build()), attached(build())
    assert content(second) != content(first)
    two.load_state_dict(saved(one))
    assert content(second) == content(first)


def test_global_generators_are_not_saved_as_attributes():
    model = nn.Linear(1, 1)
    model.python, model.numpy, model.torch = random._inst, np.random.mtrand._rand, torch.default_generator
    assert saved(ModuleAttributes({"model": model})) == {}


class Tracker:
    """An object of a script."""

    __slots__ = ("best", "history", "shadow", "weights")

    def __init__(self):
        self.best, self.history = None, []
        self.shadow, self.weights = {"a": torch.zeros(2)}, np.zeros(40_000)


OBJECTS = {
    "attribute": lambda model: setattr(model.tracker, "best", 1),
    "list": lambda model: model.tracker.history.append(Range(1.0)),
    "tensor": lambda model: model.tracker.shadow["a"].add_(1),
    "data of a tensor": lambda model: model.tracker.shadow["a"].data.add_(1),
    "array": lambda model: model.tracker.weights.fill(1),
    "replaced": lambda model: setattr(model, "tracker", 3j),
    "added": lambda model: setattr(model, "added", Tracker()),
    "after none": lambda model: setattr(model, "none", Tracker()),
    "namespace": lambda model: setattr(model.namespace, "best", 2),
    "within": lambda model: model.within[0].history.append(1),
    "factory": lambda model: model.counts["a"].append(0),
    "teacher": lambda model: model.teacher[0].weight.data.mul_(0.5),
    "count": lambda model: next(model.count),
    "generator": lambda model: model.namespace.generator.random(),
}


def with_objects():
    model = nn.Sequential(nn.Linear(1, 1))
    model.tracker, model.none, model.namespace = Tracker(), None, SimpleNamespace(generator=random.Random(0))
    model.within, model.counts, model.count = [Tracker()], defaultdict(lambda: [1]), itertools.count()
    model.teacher, model.itself = [nn.Linear(1, 1)], [model]
    model.meter, model.optimizer = Tracker(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.delays = dict.fromkeys(model.parameters(), 1)
    model.functions, model.lock, model.logger = [torch.relu, len], threading.Lock(), logging.getLogger("x")
    return model


@pytest.mark.parametrize("change", OBJECTS)
def test_changed_unsavable_objects_are_reported_once(change, caplog):
    model, part = attached(with_objects())
    saved(part)
    assert slugs(caplog.text) == []
    OBJECTS[change](model)
    for _ in range(2):
        saved(part)
    assert slugs(caplog.text) == ["not-restored"]


def test_objects_saved_elsewhere_and_tools_are_not_reported(caplog):
    model = with_objects()
    wrapper = DataParallel(model)
    model.wrapper = [wrapper]
    part = ModuleAttributes({"model": model}, [model.meter, model.optimizer])
    model.meter.best = 1
    model(torch.ones(1, 1)).sum().backward()
    model.optimizer.step()
    model.optimizer.param_groups[0]["lr"] = 1
    model.functions.append(abs)
    model.logger.x = model.logger.level = 5
    model.lock.acquire()
    model.handle = [model.register_forward_hook(lambda *_: None)]
    model.loss = model(torch.ones(1, 1))
    model.tracker, model.counts = Tracker(), defaultdict(lambda: [1])  # of the same content
    saved(part)
    assert slugs(caplog.text) == []


def test_inspection_of_objects_is_bounded(caplog):
    model = nn.Linear(1, 1)
    model.trackers = {number: Tracker() for number in range(500)}
    model.huge = SimpleNamespace(**{f"a{number}": [0] for number in range(10_000)})
    part = ModuleAttributes({"model": model})
    model.huge.a1.append(1)
    saved(part)
    assert slugs(caplog.text) == []


def large(value, *, change=False):
    model = nn.Linear(1, 1)
    model.register_buffer("table", torch.full((SMALL // 4 + 1,), float(value)), persistent=False)
    part = ModuleAttributes({"model": model})
    if change:
        model.table[0] = 9
    return model, part


def test_changed_large_buffers_are_saved(caplog):
    first, one = large(1, change=True)
    second, two = large(1)
    two.load_state_dict(saved(one))
    assert torch.equal(second.table, first.table)
    assert slugs(caplog.text) == []


def test_unchanged_large_buffers_are_compared_by_checksum(caplog):
    _, one = large(1)
    state = saved(one)
    assert [*state] == ["checksums"]
    _, two = large(1)
    two.load_state_dict(state)
    assert slugs(caplog.text) == []
    _, three = large(2)
    three.load_state_dict(state)
    assert slugs(caplog.text) == ["not-restored"]
    assert_warning(caplog.text, "not-restored", "table", "model")


def test_equal_values_in_new_tensor_are_not_change():
    model, part = large(1)
    model.table = model.table.clone()
    model.table += 0
    assert [*saved(part)] == ["checksums"]


def test_parameters_results_and_plain_objects_are_not_saved():
    model = nn.LSTM(2, 2)  # whose parameters are also in lists
    model.loss = model(torch.ones(1, 2))[0].sum()
    model.alias = model.weight_hh_l0
    part = ModuleAttributes({"model": model})
    model.config = {"object": object()}
    model.loss = model(torch.ones(1, 2))[0].sum()
    assert saved(part) == {}


def test_only_training_mode_of_wrappers_is_restored():
    (first, one), (second, two) = attached(nn.Linear(1, 1)), attached(DataParallel(nn.Linear(1, 1)))
    first.eval()
    first.weight.requires_grad_(False)
    two.load_state_dict(saved(one))
    assert (second.training, second.module.training, second.module.weight.requires_grad) == (False, False, False)
    assert saved(two) == saved(one)


def test_restore_does_not_create_missing_attributes():
    _, part = large(1, change=True)
    model = Part()
    ModuleAttributes({"other": model}).load_state_dict(saved(part))
    assert not hasattr(model, "table.table")


class Counting(torch.optim.SGD):
    """An optimizer with attributes: the first step adds some, other steps change some."""

    steps = 0

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.05, momentum=0.9)
        self.norms, self.noise, self.scale = [], torch.Generator().manual_seed(0), torch.ones(1)
        self.parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.groups, self.tracker = self.param_groups, Tracker()

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        self.norms.append(self.parameters[0].grad.norm().item())
        self.scale = self.scale * 0.9
        self.param_groups[0]["lr"] = 0.05 / self.steps**0.5
        super().step(closure)
        self.momenta = [self.state[parameter]["momentum_buffer"] for parameter in self.parameters]
        self.gradients = [parameter.grad for parameter in self.parameters]
        self.flat = self.parameters[0].data
        for parameter in self.parameters:
            parameter.add_(
                torch.randn(parameter.shape, generator=self.noise) * self.scale * sum(self.norms[-2:]) * 0.01
            )


def with_optimizer(make=Counting):
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = make(model.parameters())
    return model, optimizer, ModuleAttributes({"model": model}, [model, optimizer], {"optimizer": optimizer})


def train(model, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()


def test_optimizer_attributes_are_restored(caplog):
    (first, one, before), (second, two, after) = with_optimizer(), with_optimizer()
    noise, norms = two.noise, two.norms
    train(first, one)
    state = saved(before)
    assert {*state["values"]["attributes"]["optimizer/"]} == {"steps", "norms", "noise", "scale"}
    after.load_state_dict(state)
    second.load_state_dict(first.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    assert (two.noise is noise, two.norms is norms) == (True, True)
    train(first, one)
    train(second, two)
    assert torch.equal(first.weight, second.weight)
    assert (one.steps, one.norms, one.scale) == (two.steps, two.norms, two.scale)
    assert slugs(caplog.text) == []


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Wraps another optimizer, as Accelerate's class of this name does."""

    def __init__(self, optimizer):
        self.optimizer, self.is_overflow = optimizer, False


class Optimizer8bit(torch.optim.SGD):
    """Needs its state prepared at the first step, as bitsandbytes' class of this name does."""

    is_overflow = False


def test_attributes_recreated_by_other_libraries_are_not_saved():
    model, optimizer, _ = with_optimizer()
    wrapper, of_library = AcceleratedOptimizer(optimizer), Optimizer8bit(model.parameters())
    part = ModuleAttributes({"model": model}, optimizers={"one": wrapper, "other": of_library})
    wrapper.is_overflow = of_library.is_overflow = True
    optimizer.norms.append(1.0)
    state = saved(part)["values"]["attributes"]
    assert ([*state], state["one/"]["norms"]) == (["one/"], [1.0])
    assert "is_overflow" not in state["one/"]


def test_unsavable_optimizer_attribute_is_reported_once(caplog):
    model, optimizer, part = with_optimizer()
    for _ in range(2):
        optimizer.tracker.history.append(1)
        saved(part)
    assert slugs(caplog.text) == ["not-restored"]
    assert_warning(caplog.text, "not-restored", "tracker", "optimizer")
    assert model


BASE_ATTRIBUTES = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, fused=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, fused=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, fused=True),
    "LBFGS": torch.optim.LBFGS,
    "Rprop": torch.optim.Rprop,
}


@pytest.mark.parametrize("kind", BASE_ATTRIBUTES)
def test_torch_optimizers_have_no_extra_attributes_to_save(kind):
    model, optimizer, part = with_optimizer(BASE_ATTRIBUTES[kind])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 9, cycle_momentum=False)
    optimizer.register_step_post_hook(lambda *_: None)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
        scheduler.step()
    assert saved(part) == {}


class Decaying(torch.optim.SGD):
    """An optimizer that counts its steps in an attribute."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        self.param_groups[0]["lr"] = 1e-4 / self.steps
        return super().step(closure)


def unfreezing(attempt):
    """Unfreeze a layer in the second epoch, and train with attributes of the model and the optimizer."""
    model = attempt.model
    model.passes, model.carried = 0, torch.zeros(2)
    model.noise, model.recent = np.random.default_rng(0), deque(maxlen=2)
    model[0].requires_grad_(False)
    attempt.both = Decaying(model.parameters(), lr=1e-4, momentum=0.9)
    with attempt.open() as session:
        for epoch in session.epochs(4):
            if epoch == 1:
                model[0].requires_grad_(True)
                model[1].p = 0.25
            for number in session.batches(range(3)):
                model.passes += 1
                model.carried = 0.5 * model.carried + number
                model.recent.append(model.noise.normal())
                attempt.update(model.passes * number + model.carried.sum().item() + sum(model.recent))
        return [attempt.result(session), content(model), attempt.both.steps]


@pytest.mark.parametrize("stop_at", [2, 4, 6, 8])
def test_script_that_unfreezes_layers_resumes_exactly(stop_at, tmp_path):
    whole_and_stopped(tmp_path, unfreezing, stop_at)
