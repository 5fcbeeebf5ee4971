"""Values of "auto": chosen by the hardware when a run begins, and by the checkpoint after that."""

import tomllib
from dataclasses import replace

import pytest
import torch

from messages import assert_warning, refused, slugs
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.dist.communicator import Alone
from support import ROOT
from trainer.config.settings import DataConfig, Launch, ModelConfig, Settings, TrainConfig
from trainer.engine.auto_precision import PLAIN, saved, settle, supports_bf16, values_for_devices
from trainer.engine.checkpoint import CONFIG

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
    found = settle(settings, Alone(CPU), backend=backend, checkpoint=checkpoint)
    assert (found.launch, found.optim) == (settings.launch, settings.optim)
    assert found.data == replace(settings.data, decoder="pil")
    return found.train.amp, found.model.channels_last


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
    assert values_for_devices(settings_of(), bf16=False) == PLAIN


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
        assert settle(settings, Alone(CPU), backend="ddp", checkpoint=begun).data.decoder == expected
    assert ("data.decoder" in caplog.text) == (dataset == "imagefolder")


@pytest.mark.parametrize("channels_last", ["auto", True])
@pytest.mark.parametrize("instruction", ["avx512_bf16", None])
def test_bf16_on_cpu_without_bf16_instructions_warns(cpu, caplog, instruction, channels_last):
    cpu(instruction)
    settings = settings_of(amp="bf16", channels_last=channels_last)
    decided(replace(settings, data=replace(settings.data, decoder="pil")))
    assert slugs(caplog.text) == ([] if instruction else ["slow-bf16"])


def test_example_configurations_do_not_set_amp():
    for path in (ROOT / "configs").glob("*.toml"):
        assert "amp" not in tomllib.loads(path.read_text("utf-8")).get("train", {}), path


def test_run_resumed_on_gpu_without_bf16_warns(monkeypatch, caplog):
    """The run began on another machine. This test needs no GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "V100")
    monkeypatch.setattr("trainer.engine.auto_precision.broadcast_json", lambda _comm, value: value)
    monkeypatch.setattr("trainer.engine.auto_precision.run_on_root", lambda _comm, action: action())
    begun = checkpoint_of({"train": {"amp": "bf16"}, "model": {"channels_last": True}})
    assert settle(settings_of(), Alone(GPU), backend="ddp", checkpoint=begun).train.amp == "bf16"
    assert len(caplog.messages) == 1
    assert_warning(caplog.text, "slow-bf16", "V100", "--amp")
