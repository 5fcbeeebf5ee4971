"""Values of "auto": chosen by hardware and model when a run begins, and by the checkpoint after that."""

import random
import tomllib
from dataclasses import replace

import pytest
import torch

from messages import assert_warning, refused, slugs
from slipway.base.environment import World
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.dist.communicator import Alone
from support import ROOT
from trainer.config.settings import DataConfig, Launch, ModelConfig, Settings, TrainConfig
from trainer.engine.auto_precision import (
    BF16_FLOP_PER_OPERATOR,
    saved,
    settle_decoder,
    settle_precision,
    supports_bf16,
    values_for_run,
)
from trainer.engine.checkpoint import CONFIG
from trainer.model import initial_model
from trainer.model.meta import count_flop

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


@pytest.fixture
def cpu(monkeypatch):
    """Return a function that gives this machine a CPU with a given instruction."""

    def set_instruction(name):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, **({name: True} if name else {})})

    return set_instruction


def settings_of(*, arch="resnet18", amp="auto", channels_last="auto", dtype="float32", stage_devices=None):
    return Settings(
        model=ModelConfig(arch=arch, channels_last=channels_last),
        train=TrainConfig(amp=amp, dtype=dtype),
        launch=Launch(stage_devices=stage_devices),
    )


def checkpoint_of(tables):
    return Checkpoint({}, Header(Position(), facts={CONFIG: tables} if tables is not None else {}))


def decided(settings, *, backend="ddp", tables=None, begun=False):
    """Return --amp and --channels-last of a new run, or of one that saved ``tables``."""
    checkpoint = checkpoint_of(tables) if begun else None
    found = precision_of(settings, Alone(CPU), backend=backend, checkpoint=checkpoint)
    assert (found.launch, found.optim, found.data) == (settings.launch, settings.optim, settings.data)
    return found.train.amp, found.model.channels_last


def precision_of(settings, comm, *, model=None, shape=(3, 32, 32), backend="ddp", checkpoint=None):
    """Settle the precision of a model that is not needed unless its FLOP are counted."""
    return settle_precision(settings, comm, model, shape=shape, backend=backend, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("avx512_bf16", ("bf16", True)),
        ("amx_bf16", ("bf16", True)),
        ("bf16", ("bf16", True)),
        (None, ("none", False)),
    ],
)
def test_auto_amp_is_bf16_on_cpu_with_bf16_instructions(cpu, instruction, expected):
    cpu(instruction)
    assert decided(settings_of()) == expected


def test_auto_amp_is_none_without_warning_if_cpu_is_unknown(monkeypatch, caplog):
    """As torch 2.10."""
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert decided(settings_of()) == ("none", False)
    decided(settings_of(amp="bf16"))
    assert slugs(caplog.text) == []


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 5), False), ((8, 0), True), ((8, 9), True), ((9, 0), True), ((12, 0), True)]
)
def test_gpu_supports_bf16_since_ampere(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert supports_bf16(GPU) is expected


def test_amd_gpu_is_not_assumed_to_support_bf16(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert not supports_bf16(GPU)


def test_devices_without_bf16_get_plain_settings():
    assert values_for_run(settings_of(), bf16=lambda: False) == {"train.amp": "none", "model.channels_last": False}


@pytest.mark.parametrize(
    ("settings", "backend", "expected"),
    [
        ({"arch": "mine:model"}, "ddp", ("none", False)),
        ({"dtype": "float64"}, "ddp", ("none", False)),
        ({"stage_devices": "cuda:0,cpu"}, "ddp", ("none", False)),
        ({"stage_devices": "cuda:0,cuda:1"}, "ddp", ("bf16", True)),
        ({}, "horovod", ("bf16", False)),
        ({"amp": "none"}, "ddp", ("none", False)),
        ({"amp": "fp16"}, "ddp", ("fp16", True)),
        ({"amp": "none", "channels_last": True}, "ddp", ("none", True)),
        ({"channels_last": False}, "ddp", ("bf16", False)),
        ({"arch": "mine:model", "amp": "bf16"}, "ddp", ("bf16", False)),
        ({"arch": "mine:model", "amp": "bf16", "channels_last": True}, "ddp", ("bf16", True)),
    ],
)
def test_explicit_settings_take_precedence(cpu, settings, backend, expected):
    cpu("avx512_bf16")
    assert decided(settings_of(**settings), backend=backend) == expected


@pytest.mark.parametrize("instruction", ["avx512_bf16", None])
@pytest.mark.parametrize(
    ("tables", "backend", "expected"),
    [
        ({"train": {"amp": "bf16"}, "model": {"channels_last": True}}, "ddp", ("bf16", True)),
        ({"train": {"amp": "bf16"}, "model": {"channels_last": True}}, "horovod", ("bf16", False)),
        ({"train": {"amp": "none"}, "model": {"channels_last": False}}, "ddp", ("none", False)),
    ],
)
def test_resumed_run_keeps_precision_of_checkpoint(cpu, tables, backend, expected, instruction):
    cpu(instruction)
    assert decided(settings_of(), backend=backend, tables=tables, begun=True) == expected


@pytest.mark.parametrize(
    "tables",
    [
        *({"train": {"amp": "bf17"}}, {"train": {"amp": ["bf16"]}}, {"train": {"amp": "auto"}}, {"train": 3}),
        *({"model": {"channels_last": 1}}, {"model": "ab"}, {"data": {"decoder": "pi"}}, [], 7),
    ],
)
def test_checkpoint_with_invalid_auto_values_is_refused(tables):
    with refused("damaged-checkpoint"):
        saved(checkpoint_of(tables).header)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (("imagefolder", True, None), "simplejpeg"),
        (("imagefolder", False, None), "pil"),
        (("digits", True, None), "pil"),
        (("imagefolder", True, {}), "pil"),  # of a run that began before the second key existed
        (("imagefolder", True, {"data": {"decoder": "pil"}}), "pil"),
        (("imagefolder", False, {"data": {"decoder": "simplejpeg"}}), "simplejpeg"),
    ],
)
def test_auto_decoder_is_simplejpeg_for_imagefolder_if_installed(monkeypatch, caplog, case, expected):
    dataset, installed, tables = case
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: installed or None)
    caplog.set_level("INFO", "trainer")
    begun = None if tables is None else checkpoint_of(tables)
    for arch in ("resnet18", "mine:model"):
        settings = replace(settings_of(arch=arch), data=DataConfig(dataset=dataset))
        assert settle_decoder(settings, Alone(CPU), checkpoint=begun).data.decoder == expected
    assert ("data.decoder" in caplog.text) == (dataset == "imagefolder")


@pytest.mark.parametrize("channels_last", ["auto", True])
@pytest.mark.parametrize("instruction", ["avx512_bf16", None])
def test_bf16_on_cpu_without_bf16_instructions_warns(cpu, caplog, instruction, channels_last):
    cpu(instruction)
    decided(settings_of(amp="bf16", channels_last=channels_last))
    assert slugs(caplog.text) == ([] if instruction else ["slow-bf16"])


def test_example_configurations_do_not_set_amp():
    for path in (ROOT / "configs").glob("*.toml"):
        assert "amp" not in tomllib.loads(path.read_text("utf-8")).get("train", {}), path


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that makes torch report a GPU of this compute capability; no test computes on it."""

    def set_capability(major):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (major, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "V100")

    monkeypatch.setattr("trainer.engine.auto_precision.broadcast_json", lambda _comm, value: value)
    monkeypatch.setattr("trainer.engine.auto_precision.run_on_root", lambda _comm, action: action())
    monkeypatch.setattr("trainer.engine.auto_precision.sum_numbers", lambda _comm, numbers: [int(*numbers)])
    return set_capability


def test_run_resumed_on_gpu_without_bf16_warns(gpu, caplog):
    """The run began on another machine."""
    gpu(7)
    begun = checkpoint_of({"train": {"amp": "bf16"}, "model": {"channels_last": True}})
    assert precision_of(settings_of(), Alone(GPU), checkpoint=begun).train.amp == "bf16"
    assert len(caplog.messages) == 1
    assert_warning(caplog.text, "slow-bf16", "V100", "--amp")


@pytest.mark.parametrize(
    ("train", "ranks", "expected"),
    [
        ({"batch_size": 64}, 1, ("none", False)),
        ({"batch_size": 256}, 1, ("bf16", True)),
        ({"batch_size": 256}, 4, ("none", False)),
        ({"batch_size": 1024}, 4, ("bf16", True)),
        ({"batch_size_per_rank": 256}, 4, ("bf16", True)),
        ({"batch_size": 256, "grad_accum_steps": 4}, 1, ("none", False)),
    ],
)
def test_auto_amp_on_gpu_is_bf16_if_micro_batch_is_large(gpu, train, ranks, expected):
    gpu(9)
    settings = replace(settings_of(), train=TrainConfig(**train))
    model = initial_model(settings, shape=(3, 32, 32), classes=10)
    comm = Alone(GPU)
    comm.world = World(size=ranks)
    found = precision_of(settings, comm, model=model)
    assert (found.train.amp, found.model.channels_last) == expected


def test_model_that_cannot_run_on_meta_gets_bf16_on_gpu(gpu):
    class Deciding(torch.nn.Module):
        def forward(self, images):
            return images.flatten(1) if images.sum().item() > 0 else -images.flatten(1)

    gpu(9)
    with pytest.raises(RuntimeError):
        count_flop(Deciding(), (2, 3, 32, 32))
    assert precision_of(settings_of(), Alone(GPU), model=Deciding()).train.amp == "bf16"


@pytest.mark.parametrize(
    ("device", "capability", "settings"),
    [
        (CPU, 9, {}),
        (GPU, 7, {}),
        (GPU, 9, {"amp": "bf16"}),
        (GPU, 9, {"arch": "mine:model"}),
        (GPU, 9, {"dtype": "float64"}),
        (GPU, 9, {"stage_devices": "cuda:0,cpu"}),
    ],
)
def test_flop_are_counted_only_if_they_decide(monkeypatch, cpu, gpu, device, capability, settings):  # noqa: PLR0917
    counted = []
    monkeypatch.setattr("trainer.model.meta.count_flop", lambda *_: counted.append(1) or (0, 1))
    cpu("avx512_bf16")
    gpu(capability)
    precision_of(settings_of(**settings), Alone(device))
    assert not counted
    gpu(9)
    assert precision_of(settings_of(), Alone(GPU)).train.amp == "none"
    assert counted


@pytest.mark.parametrize(
    ("arch", "size", "batch", "gflop", "operators", "gain"),
    [
        ("mnist-cnn", 28, 64, 4.6, 35, 0.87),
        ("mnist-cnn", 28, 4096, 293, 35, 1.47),
        ("resnet18", 32, 64, 213, 181, 0.75),
        ("resnet18", 32, 256, 852, 181, 1.07),
        ("resnet18", 224, 32, 341, 183, 1.0),
        ("resnet50", 224, 64, 1555, 461, 1.37),
        ("resnet50", 224, 128, 3110, 461, 2.08),
        ("vit_b_16", 224, 32, 3365, 738, 2.84),
        ("mobilenet_v3_large", 224, 64, 82.5, 521, 0.70),
        ("efficientnet_b0", 224, 64, 147, 734, 0.75),
    ],
)
def test_flop_per_operator_separate_models_by_gain(arch, size, batch, gflop, operators, gain):  # noqa: PLR0917
    """Rows of "float32 and bf16 with NHWC" in docs/explanation/gpu.md; ``gain``: milliseconds of float32 / of bf16."""
    shape = (1 if arch == "mnist-cnn" else 3, size, size)
    model = initial_model(settings_of(arch=arch), shape=shape, classes=1000 if size == 224 else 10)
    found = count_flop(model, (batch, *shape))
    assert found == (pytest.approx(gflop * 1e9, rel=0.01), pytest.approx(operators, rel=0.02))
    assert (found[0] / found[1] >= BF16_FLOP_PER_OPERATOR) == (gain > 1)


@pytest.mark.parametrize("groups", [1, 8])
def test_flop_are_those_of_products_and_convolutions_forward_and_backward(groups):
    """The first layer needs no gradient of its input."""
    layers = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, groups=groups), torch.nn.Linear(8, 5)
    first, second, last = layers
    model = torch.nn.Sequential(first, second, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), last)
    multiply_adds = 2 * (16 * 16 * 8 * 3 * 9) + 3 * (14 * 14 * 8 * 8 // groups * 9) + 3 * (8 * 5)
    assert count_flop(model, (4, 3, 16, 16))[0] == 2 * 4 * multiply_adds


@pytest.mark.parametrize("arch", ["mnist-cnn", "efficientnet_b0"])
def test_counting_flop_changes_neither_model_nor_generators(arch):
    """These models draw random numbers: for dropout, and in place for stochastic depth."""
    shape = (3, 64, 64)
    model = initial_model(settings_of(arch=arch), shape=shape, classes=10)
    before = {name: (value, value.clone(), value._version) for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    assert min(count_flop(model, (2, *shape))) > 0
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    for name, value in model.state_dict().items():
        same, copy, version = before[name]
        assert value.data_ptr() == same.data_ptr()
        assert torch.equal(value, copy)
        assert value._version == version
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
