"""Boxes of sharded tensors: which are saved by whom, and reading any box from files with others."""

import hashlib
import itertools
import random

import pytest
import torch
from safetensors.torch import save_file

from slipway.checkpoint import saved_tensors
from slipway.checkpoint.saved_tensors import Piece, SavedTensor, SavedTensors
from slipway.checkpoint.shards import Box, divide, uncovered, whole


def grid(shape, cuts):
    """Return the boxes into which the ``cuts`` along each dimension divide a tensor of this shape."""
    spans = [
        list(itertools.pairwise(sorted({0, size, *(cut % (size + 1) for cut in own)})))
        for size, own in zip(shape, cuts, strict=True)
    ]
    return [
        Box(tuple(begin for begin, _ in spans), tuple(end - begin for begin, end in spans))
        for spans in itertools.product(*spans)
    ]


@pytest.mark.parametrize("shape", [(), (7,), (5, 4), (3, 4, 5)])
def test_boxes_of_a_grid_cover_a_tensor_and_fewer_do_not(shape):
    draw = random.Random(0)
    for _ in range(20):
        boxes = grid(shape, [[draw.randrange(9) for _ in range(3)] for _ in shape])
        draw.shuffle(boxes)
        assert uncovered(shape, boxes) == ""
        assert uncovered(shape, boxes[1:])
        assert uncovered(shape, [*boxes, boxes[0]])


def test_boxes_outside_of_a_tensor_do_not_cover_it():
    assert uncovered((4,), [Box((0,), (5,))])
    assert uncovered((4,), [Box((0, 0), (4, 1))])


def test_each_box_is_saved_once_and_bytes_are_balanced():
    held = [[["model", f"w{number}", [0], [9], 36] for number in range(8)] for _ in range(4)]
    for rank, layout in enumerate(held):
        layout.append(["model", "own", [rank], [1], 4])
    owned = divide(held)
    assert [len(boxes) for boxes in owned] == [3, 3, 3, 3]
    assert len(set().union(*owned)) == 12
    for rank, boxes in enumerate(owned):
        assert (("model", "own"), Box((rank,), (1,))) in boxes


@pytest.mark.parametrize("shape", [(), (7,), (5, 4), (3, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn, torch.bool])
@pytest.mark.parametrize("chunk", [1 << 24, 32])
def test_any_box_is_read_from_any_pieces(shape, dtype, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_tensors, "CHUNK", chunk)
    draw = random.Random(1)
    tensor = torch.randint(0, 2, shape).to(dtype)
    boxes = grid(shape, [[draw.randrange(9) for _ in range(2)] for _ in shape])
    keys = {f"{number}": box for number, box in enumerate(boxes)}
    for key, box in keys.items():
        save_file({"other": torch.ones(3), key: tensor[box.within(whole(shape))].contiguous()}, tmp_path / key)
    pieces = [Piece(box, key, key) for key, box in keys.items()]
    saved = SavedTensors(tmp_path, {("model", "w"): SavedTensor(shape, dtype, pieces)})
    wanted = [*boxes, whole(shape), *grid(shape, [[draw.randrange(9) for _ in range(3)] for _ in shape])]
    for box in wanted:
        expected = tensor[box.within(whole(shape))]
        assert torch.equal(saved.read(("model", "w"), box).to(torch.float32), expected.to(torch.float32))
    assert saved.bytes_read > 0


def test_any_damaged_byte_of_a_file_is_found(tmp_path):
    tensor = torch.arange(6.0)
    save_file({"key": tensor}, tmp_path / "file")
    whole_file = (tmp_path / "file").read_bytes()
    digest = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
    piece = Piece(whole((6,)), "file", "key", digest)
    for place in range(len(whole_file)):
        for bit in (0, 7):
            data = bytearray(whole_file)
            data[place] ^= 1 << bit
            (tmp_path / "file").write_bytes(data)
            saved = SavedTensors(tmp_path, {("model", "w"): SavedTensor((6,), torch.float32, [piece])})
            if not saved.damaged():  # a byte of the header that does not matter, such as padding
                assert torch.equal(saved.read(("model", "w")), tensor)
