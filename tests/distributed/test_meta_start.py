"""Sharded models on the meta device, filled from a Hugging Face folder of which each rank reads its parts."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from messages import slugs
from session_runs import finish, saved_step
from slipway.checkpoint.store import read_newest

MARGIN = 64 << 20
"""Bytes that a load may take besides a rank's share."""
EMBEDDING, HEAD = "embedding.weight", "head.weight"
"""Names of the tied weight."""
INDEX = "model.safetensors.index.json"


def folder_with(tensors, folder):
    """Write the tensors to two safetensors files with an index, as Hugging Face libraries do."""
    folder.mkdir()
    names = list(tensors)
    parts = {f"model-0000{number}-of-00002.safetensors": names[number - 1 :: 2] for number in (1, 2)}
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, folder / file, metadata={"format": "pt"})
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def weights(rows=11, width=8, dtype=torch.bfloat16):
    """Return the tensors of the script's model, without the second name of its tied weight."""
    names = [EMBEDDING, *(f"layers.{layer}.{name}" for layer in range(3) for name in ("weight", "bias")), "scale"]
    shapes = [(rows, width), *[(width, width), (width,)] * 3, ()]
    return {name: torch.rand(shape, dtype=dtype) for name, shape in zip(names, shapes, strict=True)}


def test_meta_model_is_filled_from_folder_and_resumes_from_checkpoint(tmp_path):
    tensors, run = weights(), tmp_path / "run"
    folder = str(folder_with(tensors, tmp_path / "hf"))
    finish("meta_start", 3, [folder, "--stop-at", "2"], run)
    filled = load_file(f"{run}.filled.safetensors")
    assert filled.keys() == {*tensors, HEAD}
    for name, tensor in tensors.items():
        assert torch.equal(filled[name], tensor.float())
    assert torch.equal(filled[HEAD], filled[EMBEDDING])
    saved = read_newest(run).whole("model")
    assert not torch.equal(saved[EMBEDDING], filled[EMBEDDING])
    assert torch.equal(saved["layers.0.weight"], filled["layers.0.weight"])  # frozen
    (tmp_path / "hf" / INDEX).unlink()
    finish("meta_start", 2, [folder], run)
    resumed = load_file(f"{run}.filled.safetensors")
    assert all(torch.equal(resumed[name], saved[name]) for name in saved)
    assert saved_step(run) == 4


@pytest.mark.parametrize("flag", ["--plain", "--buffer", "--new"])
def test_meta_model_that_cannot_be_filled_is_refused(flag, tmp_path):
    folder = str(folder_with(weights(), tmp_path / "hf"))
    assert "meta-tensors" in slugs(finish("meta_start", 2, [folder, flag], tmp_path / "run", code=1))


@pytest.mark.prove
def test_no_rank_holds_all_weights_of_a_large_model(tmp_path):
    rows, width, ranks = 100, 9216, 4
    tensors = weights(rows, width, torch.float32)
    size = sum(tensor.nbytes for tensor in tensors.values())
    assert size > 10**9
    run = tmp_path / "run"
    folder = str(folder_with(tensors, tmp_path / "hf"))
    finish("meta_start", ranks, [folder, "--rows", str(rows), "--width", str(width), "--steps", "0"], run)
    for rank in range(ranks):
        grown = int(run.with_name(f"run.{rank}.grown").read_text())
        assert grown < 2 * size / ranks + MARGIN
