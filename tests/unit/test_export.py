"""``slipway export``: weights of a run folder in a form that plain torch loads."""

import errno
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from messages import assert_error, assert_warning
from slipway.__main__ import main
from slipway.checkpoint import export_folder
from slipway.checkpoint.header import Header, Metric, Position
from slipway.checkpoint.stateful import capture
from slipway.checkpoint.store import CheckpointStore
from support import file_size_limit


class Versioned(nn.Linear):
    """A module whose state holds more than tensors."""

    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        assert state == {"version": 3}


def filled(value):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    for tensor in model.state_dict().values():
        tensor.fill_(value)
    return model


def saved(folder, step, components, accuracy=None):
    """Save a checkpoint as a session does, and return its folder."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    metric = None if accuracy is None else Metric("accuracy", accuracy)
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))])
    CheckpointStore(folder / "checkpoints", keep=3).add(
        capture({**components, "optimizer": optimizer}, Header(Position(step=step), metric))
    )
    return folder / "checkpoints" / f"step_{step:08d}"


@pytest.fixture
def run(tmp_path):
    """Return a run folder with checkpoints of steps 1 to 3; step 2 is the best."""
    for step, accuracy in [(1, 0.1), (2, 0.9), (3, 0.5)]:
        saved(tmp_path / "run", step, {"model": filled(step)}, accuracy)
    return tmp_path / "run"


def first(state):
    return next(iter(state.values())).unique().tolist()


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "weights.safetensors"])
def test_exported_newest_weights_load_in_plain_torch(run, name, capsys):
    target = run / name
    assert main(["export", str(run), str(target)]) == 0
    state = load_file(target) if name.endswith(".safetensors") else torch.load(target, weights_only=True)
    assert type(state) is dict
    model = filled(0)
    model.load_state_dict(state)
    assert first(model.state_dict()) == [3]
    assert target.stat().st_mode == (run / "checkpoints" / "latest" / "manifest.json").stat().st_mode
    assert capsys.readouterr().out == f"{target}: model at step 3\n"


def test_best_or_given_checkpoint_is_exported(run):
    assert main(["export", "--best", str(run), str(run / "best.pt")]) == 0
    assert first(torch.load(run / "best.pt")) == [2]
    assert main(["export", str(run / "checkpoints" / "step_00000001"), str(run / "one.pt")]) == 0
    assert first(torch.load(run / "one.pt")) == [1]


def test_export_skips_damaged_checkpoint_with_warning(run, caplog):
    (run / "checkpoints" / "latest" / "model.safetensors").write_bytes(b"damaged")
    assert main(["export", str(run), str(run / "weights.pt")]) == 0
    assert first(torch.load(run / "weights.pt")) == [2]
    damaged = run / "checkpoints" / "step_00000003"
    assert_warning(caplog.text, "damaged-checkpoint", damaged, "model.safetensors", len(b"damaged"))


def test_damaged_best_is_refused_and_next_best_suggested(run, capsys):
    for damaged, left in [(2, 3), (3, 1)]:
        (run / "checkpoints" / f"step_{damaged:08d}" / "model.safetensors").write_bytes(b"damaged")
        assert main(["export", "--best", str(run), str(run / "weights.pt")]) == 78
        folders = [run / "checkpoints" / f"step_{step:08d}" for step in (2, left)]
        assert_error(capsys.readouterr().err, "damaged-best", *folders)
    assert main(["export", str(folders[1]), str(run / "weights.pt")]) == 0


def test_unknown_model_error_lists_only_models(tmp_path, capsys):
    saved(tmp_path, 1, {"model.a": filled(1), "ema": filled(2), "extra": Fixed({"x": 1})})
    assert main(["export", str(tmp_path), str(tmp_path / "weights.pt"), "--model", "X"]) == 78
    said = capsys.readouterr().err
    assert_error(said, "no-such-model", "X", "a, ema")
    assert "optimizer" not in said
    assert "extra" not in said


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_full_disk_is_reported_and_leaves_no_file(name, run, capsys):
    saved(run, 4, {"model": nn.Linear(100, 100)})
    with file_size_limit(1000):
        assert main(["export", str(run), str(run / name)]) == 1
    assert_error(capsys.readouterr().err, "disk-full", run / name, os.strerror(errno.EFBIG))
    assert not list(run.glob("*weights*"))


def test_several_models_are_exported_by_name(tmp_path, capsys):
    saved(tmp_path, 1, {"model.generator": filled(5), "model.ema": filled(6)})
    assert main(["export", str(tmp_path), str(tmp_path / "all.pt")]) == 0
    assert {name: first(state) for name, state in torch.load(tmp_path / "all.pt").items()} == {
        "generator": [5],
        "ema": [6],
    }
    assert main(["export", str(tmp_path), str(tmp_path / "one.safetensors")]) == 78
    assert_error(capsys.readouterr().err, "several-models", "--model", "ema, generator")
    assert main(["export", str(tmp_path), str(tmp_path / "one.safetensors"), "--model", "ema"]) == 0
    assert first(load_file(tmp_path / "one.safetensors")) == [6]


def test_weight_average_of_trainer_is_exported_as_separate_model(tmp_path):
    average = {**filled(2).state_dict(), "n_averaged": torch.tensor(10)}
    saved(tmp_path, 1, {"model": filled(1), "ema": Fixed(average)})
    assert main(["export", str(tmp_path), str(tmp_path / "model.pt")]) == 0
    assert first(torch.load(tmp_path / "model.pt")) == [1]
    assert main(["export", str(tmp_path), str(tmp_path / "ema.pt"), "--model", "ema"]) == 0
    filled(0).load_state_dict(torch.load(tmp_path / "ema.pt"))


class Fixed:
    """A component with a fixed state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state


def test_non_tensor_state_is_exported_only_to_pt_file(tmp_path, capsys):
    saved(tmp_path, 1, {"model": Versioned(1, 1)})
    assert main(["export", str(tmp_path), str(tmp_path / "weights.pt")]) == 0
    Versioned(1, 1).load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert main(["export", str(tmp_path), str(tmp_path / "weights.safetensors")]) == 78
    assert_error(capsys.readouterr().err, "not-only-tensors", "_extra_state", ".pt")


@pytest.mark.parametrize("max_file_bytes", [1 << 30, 40_000])
def test_folder_is_loaded_by_transformers(max_file_bytes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(export_folder, "MAX_FILE_BYTES", max_file_bytes)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=64, tie_word_embeddings=True))
    saved(tmp_path / "run", 1, {"model": Fixed({name: value.clone() for name, value in model.state_dict().items()})})
    (tmp_path / "own").mkdir()
    model.config.save_pretrained(tmp_path / "own")
    (tmp_path / "text").write_text("mine")
    target = tmp_path / "v1.5"
    extra = [str(tmp_path / "own"), str(tmp_path / "text")]
    assert main(["export", str(tmp_path / "run"), f"{target}/", "--extra", *extra]) == 0
    assert capsys.readouterr().out == f"{target}/: model at step 1\n"
    names = {file.name for file in target.iterdir()}
    assert {"config.json", "text"} < names
    assert ("model.safetensors.index.json" in names) == (max_file_bytes < 1 << 30)
    assert not [file for file in target.glob("*.safetensors") if file.stat().st_size > max_file_bytes + 4096]
    loaded = LlamaForCausalLM.from_pretrained(target).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())


def test_folder_holds_tensors_of_one_model(tmp_path, capsys):
    saved(tmp_path, 1, {"model.a": filled(5), "model.b": Versioned(1, 1)})
    assert main(["export", str(tmp_path), str(tmp_path / "out")]) == 78
    assert_error(capsys.readouterr().err, "several-models", "--model", "a, b")
    assert main(["export", str(tmp_path), str(tmp_path / "out"), "--model", "b"]) == 78
    assert_error(capsys.readouterr().err, "not-only-tensors", "_extra_state")
    assert main(["export", str(tmp_path), str(tmp_path / "out"), "--model", "a"]) == 0
    assert first(load_file(tmp_path / "out" / "model.safetensors")) == [5]


def test_full_disk_leaves_no_folder(run, capsys):
    saved(run, 4, {"model": nn.Linear(100, 100)})
    with file_size_limit(1000):
        assert main(["export", str(run), str(run / "out/")]) == 1
    assert_error(capsys.readouterr().err, "disk-full", run / "out", os.strerror(errno.EFBIG))
    assert not list(run.glob("*out*"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "run/status.json"], (2, "export-format", ".pt", ".pth", ".safetensors")),
        (["run"], (2, "bad-arguments", "TARGET")),
        (["run", "weights.pt", "--extra", "there.pt"], (2, "export-format", "weights.pt", "--extra")),
        (["run", "out", "--extra", "gone.json"], (1, "cannot-read", "gone.json")),
        (["run", "v1.5/", "--extra", "there.pt", "other/there.pt"], (78, "file-exists", "there.pt")),
        (["run", "there.pt/"], (78, "file-exists", "there.pt")),
        (["run", "v1.5"], (2, "export-format", "v1.5", "/")),
        (["run", "there.pt"], (78, "file-exists", "there.pt")),
        (["none", "weights.pt"], (78, "no-checkpoint", "none", "manifest.json")),
        (["run", "none/weights.pt"], (78, "cannot-write", "none/weights.pt", os.strerror(errno.ENOENT))),
        (["run", "weights.pt", "--model", "critic"], (78, "no-such-model", "critic", "model")),
        (["plain", "weights.pt", "--best"], (78, "no-best-checkpoint", "plain")),
    ],
)
def test_export_errors_are_one_line_and_leave_no_file(words, expected, run, capsys, monkeypatch):
    monkeypatch.chdir(run.parent)
    saved(run.parent / "plain", 1, {"model": filled(1)})
    for there in (run.parent / "there.pt", run.parent / "other" / "there.pt"):
        there.parent.mkdir(exist_ok=True)
        there.write_bytes(b"mine")
    before = sorted(run.parent.rglob("*"))
    try:
        found = main(["export", *words])
    except SystemExit as error:
        found = error.code
    said = capsys.readouterr().err
    code, slug, *values = expected
    assert found == code, said
    assert_error(said, slug, *values)
    if slug != "bad-arguments":  # which follows a usage line
        assert said.startswith("slipway: ")
        assert said.count("\n") == 1
    assert sorted(run.parent.rglob("*")) == before
    assert (run.parent / "there.pt").read_bytes() == b"mine"


def test_slipway_help_does_not_import_torch():
    words = [sys.executable, "-X", "importtime", "-m", "slipway", "--help"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "export" in done.stdout
    assert "argparse" in done.stderr
    assert "torch" not in done.stderr


def test_export_without_torch_reports_missing_package():
    code = "import sys; sys.modules['torch'] = None; from slipway.__main__ import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "export", "run", "weights.pt"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 78
    assert_error(done.stderr, "missing-package", "torch")
