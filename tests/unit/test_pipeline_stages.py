"""A model in pipeline stages trains bitwise like the whole model."""

import itertools
import json
import random
import re
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torchvision.models import get_model

from messages import assert_names, assert_warning, refused, slugs
from slipway.base.environment import read_environment
from slipway.base.stop import Reason, StopRequest
from slipway.dist.communicator import Alone
from slipway.run.metrics import read_records
from support import status
from toy_model import Toy, build
from trainer.config.settings import Launch, ModelConfig, OptimConfig, RunConfig, Settings, TrainConfig
from trainer.engine.layer_seeding import ModuleSeeder, StepSeeder
from trainer.engine.learner import Learner
from trainer.model.recompute import blocks
from trainer.parallel.single import SingleStrategy
from trainer.parallel.stages.balance import balance, seconds_of
from trainer.parallel.stages.cut import cut
from trainer.parallel.stages.pipeline import Pipeline
from trainer.parallel.stages.profile import Piece, profile
from trainer.parallel.strategy import connect
from trainer.train import run


def settings_of(
    folder, *, dtype="float32", amp="none", steps=20, optim=None, resume=None, devices_per_rank=None, **model
):
    return Settings(
        model=ModelConfig(arch="toy_model:build", ema_decay=0.9, **model),
        optim=optim or OptimConfig(optimizer="sgd", lr=0.1, clip_grad=0.5),
        train=TrainConfig(max_steps=steps, epochs=2, batch_size=61, grad_accum_steps=4, dtype=dtype, amp=amp),
        run=RunConfig(figures=False, checkpoint_interval=7, log_interval=5),
        launch=Launch(
            device="cpu", threads=1, output_dir=str(folder), resume=resume, devices_per_rank=devices_per_rank
        ),
    )


def start(settings):
    comm = Alone(torch.device("cpu"))
    assert run(settings, comm, SingleStrategy(settings), StopRequest(), read_environment({})) == Reason.NONE


def train(folder, **changes):
    start(settings_of(folder, **changes))
    return {path.name: load_file(path) for path in (folder / "checkpoints" / "latest").glob("*.safetensors")}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for file, tensors in expected.items():
        assert found[file].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(found[file][name], tensor), (file, name)


SPLITS = ["blocks.1", "blocks.1,head"]


@pytest.fixture(scope="module", params=["float32", "float64"])
def whole(request, tmp_path_factory):
    return request.param, train(tmp_path_factory.mktemp("whole") / "run", dtype=request.param)


@pytest.mark.parametrize("pipeline", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("split", "recompute"),
    [(SPLITS[0], False), (SPLITS[1], False), (None, True), ("blocks.1", True), ("blocks.0.conv,blocks.3", True)],
)
def test_stages_and_recompute_match_whole_model_bitwise(whole, split, recompute, pipeline, tmp_path):
    dtype, expected = whole
    assert_equal(train(tmp_path / "run", dtype=dtype, split=split, pipeline=pipeline, recompute=recompute), expected)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_stages_with_amp_match_whole_model_bitwise(amp, tmp_path):
    expected = train(tmp_path / "whole", amp=amp)
    assert_equal(train(tmp_path / "split", amp=amp, split=SPLITS[1]), expected)
    with pytest.raises(AssertionError):
        assert_equal(train(tmp_path / "float32"), expected)


def test_evaluation_of_stages_matches_whole_model(tmp_path):
    for name, split in {"whole": None, "split": SPLITS[1]}.items():
        train(tmp_path / name, split=split, steps=40)
    whole, stages = (list(map(result, read_records(tmp_path / name / "metrics.jsonl"))) for name in ("whole", "split"))
    assert len([record for record in whole if record["kind"] == "validation"]) == 2
    assert whole == stages


def result(record):
    return {key: value for key, value in record.items() if "second" not in key and key != "elapsed"}


def modules_of(stage):
    return sorted({re.match(r"blocks\.\d|\w+", name)[0] for name, _ in stage.named_parameters()})


def test_stage_begins_with_the_named_module():
    stages = cut(build((1, 8, 8), 10), ["blocks.1", "head"])
    assert [modules_of(stage) for stage in stages] == [["blocks.0", "stem"], ["blocks.1", "blocks.3"], ["head"]]


def test_each_stage_is_moved_to_its_own_device():
    devices = [torch.device("cpu"), torch.device("meta")]
    pipeline = Pipeline(build((1, 8, 8), 10), ["blocks.1"], devices)
    for stage, device in zip(pipeline.stages, devices, strict=True):
        assert {value.device for value in (*stage.parameters(), *stage.buffers())} == {device}
    assert pipeline(torch.zeros(3, 1, 8, 8)).device == devices[1]


def test_run_json_records_stage_devices_of_each_rank(tmp_path):
    train(tmp_path / "run", split=SPLITS[1], steps=1)
    ((_host, *devices),) = json.loads((tmp_path / "run" / "run.json").read_text())["launch"]["stages"]
    assert devices == ["cpu"] * 3


def test_recompute_of_model_without_blocks_is_refused(tmp_path):
    settings = Settings(
        model=ModelConfig(arch="mlp", recompute=True), launch=Launch(device="cpu", output_dir=str(tmp_path / "run"))
    )
    with refused("no-blocks", "--recompute", "MLP", "nn.Sequential"):
        start(settings)


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("resnet18", ["layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer3.0", "layer3.1", "layer4.0", "layer4.1"]),
        ("vit_b_16", [f"encoder.layers.encoder_layer_{number}" for number in range(12)]),
        ("vgg11", []),
    ],
)
def test_repeated_blocks_of_torchvision_models_are_found(arch, expected):
    assert blocks(get_model(arch)) == expected


def test_run_resumes_with_different_split(whole, tmp_path):
    dtype, expected = whole
    train(tmp_path / "run", dtype=dtype, steps=6, split=SPLITS[0])
    train(tmp_path / "run", dtype=dtype, steps=13, split=SPLITS[1], pipeline="gpipe", resume="auto")
    assert_equal(train(tmp_path / "run", dtype=dtype, resume="auto"), expected)


def test_split_auto_matches_whole_model_bitwise(whole, tmp_path, caplog):
    dtype, expected = whole
    with caplog.at_level("INFO"):
        found = train(tmp_path / "run", dtype=dtype, split="auto", devices_per_rank=3)
    assert_equal(found, expected)
    assert [line.partition(":")[0].partition(",")[0] for line in caplog.messages if line.startswith("stage ")] == [
        f"stage {number} on cpu" for number in range(3)
    ]


def test_dry_run_writes_only_schedule_figure(tmp_path, caplog):
    settings = settings_of(tmp_path / "run", split=SPLITS[1])
    launch, figures = replace(settings.launch, dry_run=True), replace(settings.run, figures=True)
    with caplog.at_level("INFO"):
        start(replace(settings, launch=launch, run=figures))
    (figure,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert figure == tmp_path / "run" / "figures" / "schedule.png"
    assert_names(caplog.text, f" {figure} ")


def test_run_writes_schedule_figure(tmp_path):
    settings = settings_of(tmp_path / "run", split=SPLITS[0], steps=2)
    start(replace(settings, run=replace(settings.run, figures=True)))
    assert (tmp_path / "run" / "figures" / "schedule.png").stat().st_size > 10_000


def test_old_randomness_version_resumed_in_stages_warns(tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patched:
        patched.setattr(ModuleSeeder, "version", StepSeeder.version)
        train(tmp_path / "run", steps=7)
    train(tmp_path / "run", steps=14, resume="auto")
    assert "different-random-numbers" not in slugs(caplog.text)
    train(tmp_path / "run", resume="auto", split=SPLITS[0])
    assert_warning(caplog.text, "different-random-numbers")


def test_out_of_memory_error_suggests_memory_dry_run(tmp_path, monkeypatch):
    def backward(*_args, **_kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation ...")

    monkeypatch.setattr(Learner, "backward", backward)
    with refused("out-of-memory", "2.00 GiB.", "`trainer --dry-run --memory`"):
        train(tmp_path / "run")
    found = status(tmp_path / "run")
    assert (found["state"], found["reason"].partition(":")[0]) == ("failed", "out-of-memory")


@pytest.mark.parametrize(
    ("model", "launch", "keys"),
    [
        ({"split": "b", "compile": True}, {}, ["model.split", "model.compile"]),
        ({"split": "b", "sync_bn": True}, {}, ["model.split", "model.sync_bn"]),
        ({"recompute": True, "compile": True}, {}, ["model.recompute", "model.compile"]),
        ({"recompute": True, "sync_bn": True}, {}, ["model.recompute", "model.sync_bn"]),
        ({}, {"memory": True}, ["launch.memory", "launch.dry_run"]),
    ],
)
def test_conflicting_split_recompute_and_memory_settings_are_refused(model, launch, keys):
    settings = Settings(model=ModelConfig(**model), launch=Launch(backend="single", **launch))
    with refused("conflicting-settings", *keys):
        connect(settings, read_environment({}))


def test_split_auto_requires_valid_number_of_stages(tmp_path):
    with refused("conflicting-settings", "--split auto", "--devices-per-rank", "--stage-devices"):
        train(tmp_path / "run", split="auto")
    with refused("bad-split", "--split auto", " 7 ", " 90 "):
        train(tmp_path / "run2", split="auto", devices_per_rank=90)


def test_split_auto_writes_measurements_to_csv(tmp_path):
    train(tmp_path / "run", split="auto", devices_per_rank=2, steps=1)
    header, *rows = (tmp_path / "run" / "split.csv").read_text().splitlines()
    assert header == "stage,begins_with,forward_ms,backward_ms,parameter_bytes,activation_bytes"
    cells = [row.split(",") for row in rows]
    assert [cell[1] for cell in cells] == ["", "blocks", "blocks.1", "blocks.2", "blocks.3", "head", "head.1"]
    assert [cell[0] for cell in cells] == sorted(cell[0] for cell in cells)
    assert {cell[0] for cell in cells} == {"0", "1"}


def pieces_of(seconds):
    return [Piece(str(number), value, 0, 1, 1) for number, value in enumerate(seconds)]


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_balance_minimizes_time_of_slowest_stage(stages, seed):
    pieces = pieces_of(random.Random(seed).choices(range(1, 50), k=9))

    def slowest(begins):
        return max(seconds_of(pieces[begin:end]) for begin, end in itertools.pairwise([*begins, len(pieces)]))

    every = [(0, *others) for others in itertools.combinations(range(1, 9), stages - 1)]
    assert slowest(balance(pieces, stages, fits=lambda *_: True)) == min(map(slowest, every))


def test_balance_respects_memory_of_each_device():
    pieces = pieces_of([1, 1, 1, 9])
    assert balance(pieces, 2, fits=lambda *_: True) == [0, 3]
    assert balance(pieces, 2, fits=lambda stage, some: stage == 1 or len(some) <= 2) == [0, 2]
    with refused("out-of-memory", "--split auto", " 2 "):
        balance(pieces, 2, fits=lambda _, some: len(some) < 2)


def test_profile_leaves_model_unchanged():
    model = Toy((1, 8, 8), 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pieces = profile(model, torch.zeros(4, 1, 8, 8), device=torch.device("cpu"), forward=nullcontext)
    assert [piece.name for piece in pieces] == ["", "blocks", "blocks.1", "blocks.2", "blocks.3", "head", "head.1"]
    assert all(piece.seconds > 0 for piece in pieces)
    assert sum(piece.parameters for piece in pieces) == sum(
        value.nbytes for value in (*model.parameters(), *model.buffers())
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Outer(nn.Module):
    """A model that cannot be cut everywhere."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        first = self.first(x)
        return self.third(self.second(first) + first)


class Choosing(Outer):
    def forward(self, x):
        return self.third(self.first(x) if x.sum() > 0 else self.second(x))


class Drawing(Outer):
    def forward(self, x):
        return self.second(nn.functional.dropout(self.first(x)))


def tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "names", "values"),
    [
        (Outer(), ["secnd"], ["'secnd'", "'second'"]),
        (Outer(), [""], ["''"]),
        (nn.Sequential(nn.ReLU(), nn.ReLU()), ["0"], [" 0 "]),
        (nn.Sequential(nn.ReLU(), nn.ReLU()), ["1", "1"], [" 1 "]),
        (Outer(), ["third", "second"], ["--split third,second: ", " second "]),
        (Choosing(), ["third"], ["TraceError"]),
        (Drawing(), ["second"], [" dropout ", "nn.Dropout"]),
        (Drawing(), ["third"], ["--split third: "]),
        (tied(), ["1"], [" 1 ", " 2 ", "(0.weight, 1.weight)"]),
    ],
)
def test_invalid_cut_of_model_is_refused_with_reason(model, names, values):
    with refused("bad-split", "--split", *values):
        cut(model, names)


def test_cut_at_residual_connection_is_refused_with_valid_places():
    places = "stem, blocks.0.conv, blocks.1, blocks.2, blocks.3, head."
    with refused("bad-split", "blocks.0.norm", " stem and blocks.0.conv ", places):
        cut(Toy((1, 8, 8), 3), ["blocks.0.norm"])
