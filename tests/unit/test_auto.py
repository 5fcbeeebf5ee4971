"""What --amp auto and --channels-last auto become: by the hardware when a run begins, by the checkpoint afterwards."""

from types import SimpleNamespace

import pytest
import torch

from slipway.checkpoint.folder import Checkpoint
from slipway.checkpoint.header import Header
from slipway.communicator import Alone
from slipway.position import Position
from trainer.auto import PLAIN, fastest, saved, settle
from trainer.checkpoint import CONFIG
from trainer.config import Config, ModelConfig, Settings, TrainConfig
from trainer.errors import ConfigError

CPU = torch.device("cpu")
BOTH = {"amp": "bf16", "channels_last": True}


@pytest.fixture
def cpu(monkeypatch):
    """Return a function that gives this machine a CPU with an instruction."""

    def set_instruction(name):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, **({name: True} if name else {})})

    return set_instruction


def config_of(*, arch="resnet18", amp="auto", channels_last="auto", dtype="float32"):
    return Settings(model=ModelConfig(arch=arch, channels_last=channels_last), train=TrainConfig(amp=amp, dtype=dtype))


def checkpoint_of(tables):
    return Checkpoint({}, Header(Position(), facts={CONFIG: tables} if tables is not None else {}))


@pytest.mark.parametrize("instruction", ["avx512_bf16", "amx_bf16", "bf16"])
def test_a_cpu_that_multiplies_bf16_computes_in_it(cpu, instruction):
    cpu(instruction)
    assert fastest(Config(), CPU, backend="ddp") == BOTH


def test_another_cpu_does_not(cpu):
    cpu(None)
    assert fastest(Config(), CPU, backend="ddp") == PLAIN


def test_nor_does_one_of_which_torch_says_nothing(monkeypatch):
    """As torch 2.10."""
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert fastest(Config(), CPU, backend="ddp") == PLAIN


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 5), PLAIN), ((8, 0), BOTH), ((8, 9), BOTH), ((9, 0), BOTH), ((12, 0), BOTH)]
)
def test_a_gpu_does_since_ampere(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert fastest(Config(), torch.device("cuda", 0), backend="ddp") == expected


def test_a_gpu_of_amd_has_other_numbers(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert fastest(Config(), torch.device("cuda", 0), backend="ddp") == PLAIN


@pytest.mark.parametrize(
    ("config", "backend", "expected"),
    [
        ({"arch": "mine:model"}, "ddp", PLAIN),
        ({"dtype": "float64"}, "ddp", PLAIN),
        ({"amp": "none"}, "ddp", PLAIN),
        ({}, "horovod", {**BOTH, "channels_last": False}),
        ({"amp": "fp16"}, "ddp", {"amp": "fp16", "channels_last": True}),
        ({"amp": "none", "channels_last": True}, "ddp", {"amp": "none", "channels_last": True}),
        ({"channels_last": False}, "ddp", {**BOTH, "channels_last": False}),
        ({"arch": "mine:model", "amp": "bf16"}, "ddp", {"amp": "bf16", "channels_last": False}),
    ],
)
def test_what_is_asked_for_goes_before(cpu, config, backend, expected):
    cpu("avx512_bf16")
    asked = config_of(**config)
    found = settle(asked, Alone(CPU), backend=backend, checkpoint=None)
    assert {"amp": found.train.amp, "channels_last": found.model.channels_last} == expected
    assert (found.launch, found.data, found.optim) == (asked.launch, asked.data, asked.optim)


@pytest.mark.parametrize("instruction", ["avx512_bf16", None])
@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"train": {"amp": "bf16"}, "model": {"channels_last": True}}, BOTH),
        ({"train": {"amp": "none"}, "model": {"channels_last": False}}, PLAIN),
        (None, PLAIN),  # of version 0.1
    ],
)
def test_a_resumed_run_keeps_what_it_began_with(cpu, tables, expected, instruction):
    cpu(instruction)
    found = settle(config_of(), Alone(CPU), backend="single", checkpoint=checkpoint_of(tables))
    assert {"amp": found.train.amp, "channels_last": found.model.channels_last} == expected


@pytest.mark.parametrize(
    "tables",
    [{"train": {"amp": "bf17"}}, {"train": {"amp": ["bf16"]}}, {"model": {"channels_last": 1}}, {"train": 3}, [], 7],
)
def test_a_manifest_with_something_else_is_refused(tables):
    with pytest.raises(ConfigError, match="manifest of the checkpoint is damaged"):
        saved(SimpleNamespace(facts={CONFIG: tables}))
