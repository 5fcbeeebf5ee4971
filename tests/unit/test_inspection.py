"""``slipway inspect``: the tensors of a checkpoint."""

import hashlib

import pytest
import torch
from safetensors.torch import save_file

from messages import assert_error
from slipway.__main__ import main
from slipway.checkpoint.format import Shards, write_manifest, write_tensors
from slipway.checkpoint.header import Header, Metric, Position


@pytest.fixture
def run(tmp_path):
    """Return a run folder with a checkpoint whose weight is stored as two shards, and its bias whole."""
    folder = tmp_path / "checkpoints" / "step_00000003"
    folder.mkdir(parents=True)
    weight = torch.arange(6.0).reshape(3, 2)
    parts = {0: weight[:2].contiguous(), 1: weight[2:].contiguous()}
    pieces = []
    for rank, part in parts.items():
        file = f"shards.{rank}.safetensors"
        save_file({"key": part}, folder / file)
        digest = hashlib.sha256(part.numpy().tobytes()).hexdigest()
        pieces.append({"offset": [2 * rank, 0], "size": [*part.shape], "file": file, "key": "key", "sha256": digest})
    entry = {"model": {"weight": {"shape": [3, 2], "dtype": "float32", "pieces": pieces}}}
    sizes = {piece["file"]: {"bytes": (folder / piece["file"]).stat().st_size} for piece in pieces}
    files = write_tensors(folder, {"model": {"bias": torch.zeros(3)}})
    header = Header(Position(step=3, epoch=1), Metric("loss", 0.5, maximize=False), {"world_size": 2})
    write_manifest(folder, header, files, Shards(sizes, entry))
    return tmp_path


def rows(text):
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize("place", ["", "checkpoints/step_00000003"])
def test_tensors_and_pieces_are_listed(place, run, capsys):
    assert main(["inspect", str(run / place)]) == 0
    said = rows(capsys.readouterr().out)
    weight = [row for row in said if row[:2] == ["model", "weight"]]
    assert [row[2:-1] for row in weight] == [
        ["float32", "[3,2]", "[0,0]", "[2,2]", "shards.0.safetensors"],
        ["float32", "[3,2]", "[2,0]", "[1,2]", "shards.1.safetensors"],
    ]
    assert weight[1][-1] == hashlib.sha256(torch.tensor([4.0, 5.0]).numpy().tobytes()).hexdigest()
    assert ["model", "bias", "float32", "[3]", "-", "-", "model.safetensors", "-"] in said
    digest = hashlib.sha256((run / "checkpoints" / "step_00000003" / "model.safetensors").read_bytes()).hexdigest()
    assert any(row[0] == "model.safetensors" and row[2] == digest for row in said if row)


def test_verify_finds_damage(run, capsys):
    assert main(["inspect", "--verify", str(run)]) == 0
    file = run / "checkpoints" / "step_00000003" / "shards.1.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert main(["inspect", str(run)]) == 0
    capsys.readouterr()
    assert main(["inspect", "--verify", str(run)]) == 78
    assert_error(capsys.readouterr().err, "damaged-checkpoint", file.name)


@pytest.mark.parametrize("damage", ["manifest.json", "model.safetensors"])
def test_checkpoint_that_cannot_be_listed_is_one_error(damage, run, capsys):
    (run / "checkpoints" / "step_00000003" / damage).write_bytes(b"damaged")
    assert main(["inspect", str(run)]) == 78
    assert_error(capsys.readouterr().err, "damaged-checkpoint", "step_00000003")


def test_folder_without_checkpoint_is_refused(tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 78
    assert_error(capsys.readouterr().err, "no-checkpoint", tmp_path)
