"""Listing of a checkpoint: position, files, and the pieces of each tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from slipway.base.contract import CHECKPOINTS
from slipway.base.errors import DamagedCheckpointError, NoCheckpointError
from slipway.checkpoint.format import MANIFEST, DamagedError, read_manifest, verify
from slipway.checkpoint.saved_tensors import SavedTensor, SavedTensors, in_safetensors
from slipway.checkpoint.store import CheckpointStore, reading

FILES = ("file", "bytes", "sha256")
TENSORS = ("component", "tensor", "dtype", "shape", "offset", "size", "file", "sha256")


def describe(path: Path, *, is_verified: bool) -> Iterator[str]:
    """Yield the lines of a listing of a checkpoint.

    Args:
        path: a checkpoint, or a run folder, of which it is the newest.
        is_verified: whether to compare all files with their digests first.

    Raises:
        RunError: if there is no checkpoint, or it is damaged or cannot be read.
    """
    with reading(path):
        if not (path / MANIFEST).exists():
            newest = CheckpointStore(path / CHECKPOINTS, keep=1).newest_folder()
            if newest is None:
                raise NoCheckpointError(path=path, manifest=MANIFEST)
            path = newest
        try:
            if is_verified:
                verify(path)
            header, files, sharded = read_manifest(path)
            rows = [*_unsharded(path, files), *(_pieces(sharded) if sharded else [])]
        except (DamagedError, SafetensorError) as error:
            raise DamagedCheckpointError(path=path, reason=error) from error
    position, ranks = header.position, header.facts.get("world_size")
    yield f"{path}: step {position.step}, epoch {position.epoch}{f', {ranks} rank(s)' if ranks else ''}"
    if header.metric:
        yield f"metric {header.metric.name}: {header.metric.value}"
    yield "all digests match" if is_verified else "digests not compared (--verify)"
    yield ""
    yield from _table([FILES, *([name, str(each["bytes"]), each.get("sha256", "-")] for name, each in files.items())])
    yield ""
    yield from _table([TENSORS, *rows])


def _unsharded(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield the rows of the tensors that are stored whole; the digest is that of their file."""
    for file, entry in files.items():
        if "sha256" in entry:
            component = file.removesuffix(".safetensors")
            for name, tensor in in_safetensors(folder / file).items():
                yield component, name, *_kind(tensor), "-", "-", file, "-"


def _pieces(sharded: SavedTensors) -> Iterator[Sequence[str]]:
    for (component, name), tensor in sharded.tensors.items():
        for box, file, _, sha256 in tensor.pieces:
            yield component, name, *_kind(tensor), _list(box.offset), _list(box.size), file, sha256


def _kind(tensor: SavedTensor) -> tuple[str, str]:
    return str(tensor.dtype).removeprefix("torch."), _list(tensor.shape)


def _list(numbers: Sequence[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
