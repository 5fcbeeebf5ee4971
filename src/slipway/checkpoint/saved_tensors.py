"""Tensors of a checkpoint that are read from disk when they are needed, whole or in part.

A tensor is stored whole in its component's file, or as pieces: the boxes that several ranks have saved, each in the
file of its rank. A rank reads only the elements that it holds, through a buffer of ``CHUNK`` bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from slipway.checkpoint.shards import Box, Place, uncovered, whole

CHUNK = 1 << 24
"""Bytes read at once."""
LENGTH = 8
"""Bytes of the number at the beginning of a safetensors file: the length of the header that follows, little-endian."""
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
"""torch's names of the dtypes in a safetensors file."""


class Piece(NamedTuple):
    """A box of a tensor in a file."""

    box: Box
    file: str
    key: str
    """The box's name in the file."""
    sha256: str = ""
    """Digest of the box's bytes; "" if the manifest has a digest of the whole file."""


class SavedTensor(NamedTuple):
    """A tensor in the files of a checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Sequence[Piece]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return whole(self.shape).elements * self.dtype.itemsize


Entry = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""The manifest's entry for sharded tensors: shape, dtype and pieces, by component and name."""


def sharded_tensors(entry: Entry) -> dict[Place, SavedTensor]:
    """Return the tensors of a manifest's ``entry``.

    Raises:
        KeyError, TypeError: if it is no such entry.
    """
    found = {}
    for component, tensors in entry.items():
        for name, tensor in tensors.items():
            pieces = [
                Piece(Box(tuple(each["offset"]), tuple(each["size"])), each["file"], each["key"], each["sha256"])
                for each in tensor["pieces"]
            ]
            found[component, name] = SavedTensor(tuple(tensor["shape"]), getattr(torch, tensor["dtype"]), pieces)
    return found


def in_safetensors(path: Path) -> dict[str, SavedTensor]:
    """Return the tensors of a safetensors file, each as one piece, whose file is ``path``.

    Raises:
        SafetensorError, OSError: if the file is damaged or cannot be read.
        KeyError: if this version does not know a dtype.
    """
    found = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 -- not a mapping
            tensor = file.get_slice(name)
            shape = tuple(tensor.get_shape())
            dtype = getattr(torch, DTYPES[tensor.get_dtype()])
            found[name] = SavedTensor(shape, dtype, [Piece(whole(shape), str(path), name)])
    return found


def missing_elements(tensors: Mapping[Place, SavedTensor]) -> str:
    """Return which of ``tensors`` has elements in no piece or in several, as text; "" if none does."""
    for place, saved in tensors.items():
        if fault := uncovered(saved.shape, [piece.box for piece in saved.pieces]):
            return f"{' '.join(place)}: {fault}"
    return ""


class SavedTensors:
    """The tensors in the folder of a checkpoint, by component and name."""

    def __init__(self, folder: Path, tensors: Mapping[Place, SavedTensor]) -> None:
        """Read ``tensors`` from the files in ``folder``."""
        self.folder, self.tensors = folder, tensors
        self._headers: dict[str, tuple[int, dict[str, Any]]] = {}
        self.bytes_read = 0
        """Bytes of tensors that were read so far."""

    @property
    def entry(self) -> Entry:
        """The tensors as an entry of a manifest, from which ``sharded_tensors`` reads them."""
        found: dict[str, dict[str, Any]] = {}
        for (component, name), (shape, dtype, pieces) in self.tensors.items():
            listed = [
                {"offset": box.offset, "size": box.size, "file": file, "key": key, "sha256": sha256}
                for box, file, key, sha256 in pieces
            ]
            dtype_name = str(dtype).removeprefix("torch.")
            found.setdefault(component, {})[name] = {"shape": shape, "dtype": dtype_name, "pieces": listed}
        return found

    @property
    def components(self) -> set[str]:
        """Names of the components that have a tensor."""
        return {component for component, _ in self.tensors}

    def names(self, component: str) -> list[str]:
        """Return the names of the tensors of ``component``."""
        return [name for owner, name in self.tensors if owner == component]

    def read(self, place: Place, box: Box | None = None) -> Tensor:
        """Return the elements of a tensor in ``box``, or all of them, as a new tensor on the CPU.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if a file does not hold the tensor.
        """
        return self.read_tensor(self.tensors[place], box)

    def read_tensor(self, saved: SavedTensor, box: Box | None = None) -> Tensor:
        """Return the elements of ``saved``, a tensor in this folder, as ``read`` does."""
        box = whole(saved.shape) if box is None else box
        found = torch.empty(box.size, dtype=saved.dtype)
        for piece in saved.pieces:
            if piece.box.overlap(box):
                for rows, values in self._rows(piece, saved.dtype, box):
                    if part := rows.overlap(box):
                        found[part.within(box)] = values[part.within(rows)]
        return found

    def damaged(self, *, rank: int = 0, ranks: int = 1) -> str:
        """Return which piece differs from its digest, as text; "" if none does.

        Args:
            rank: the function reads each ``ranks``-th piece, beginning with this one.
            ranks: number of ranks that share the work.

        Raises:
            OSError: if a file cannot be read for another reason than that it is missing.
        """
        pieces = [(saved.dtype, piece) for saved in self.tensors.values() for piece in saved.pieces if piece.sha256]
        for dtype, piece in pieces[rank::ranks]:
            digest = hashlib.sha256()
            try:
                for _, values in self._rows(piece, dtype, piece.box):
                    digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
            except (ValueError, FileNotFoundError) as error:
                return f"{piece.file} cannot be read: {getattr(error, 'strerror', None) or error}"
            if digest.hexdigest() != piece.sha256:
                return f"the sha256 of {piece.key} in {piece.file} does not match the one in the manifest"
        return ""

    def _rows(self, piece: Piece, dtype: torch.dtype, box: Box) -> Iterator[tuple[Box, Tensor]]:
        """Yield the rows of ``piece`` that overlap ``box``, at most CHUNK bytes at once if a row is not larger."""
        start = self._locate(piece, dtype)
        if not piece.box.size:
            yield piece.box, self._bytes(piece.file, start, dtype.itemsize).view(dtype).reshape(())
            return
        part = piece.box.overlap(box)
        assert part
        row = dtype.itemsize * (piece.box.elements // piece.box.size[0])
        begin = part.offset[0] - piece.box.offset[0]
        end, step = begin + part.size[0], max(1, CHUNK // row)
        for first in range(begin, end, step):
            count = min(step, end - first)
            size = (count, *piece.box.size[1:])
            rows = Box((piece.box.offset[0] + first, *piece.box.offset[1:]), size)
            yield rows, self._bytes(piece.file, start + first * row, count * row).view(dtype).reshape(size)

    def _bytes(self, file: str, start: int, count: int) -> Tensor:
        data = bytearray(count)
        with (self.folder / file).open("rb", buffering=0) as stream:
            stream.seek(start)
            view, done = memoryview(data), 0
            while done < count and (read := stream.readinto(view[done:])):
                done += read
        if done < count:
            raise ValueError("it is too short")
        self.bytes_read += count
        return torch.frombuffer(data, dtype=torch.uint8)

    def _locate(self, piece: Piece, dtype: torch.dtype) -> int:
        """Return where the bytes of ``piece`` begin in its file."""
        if piece.file not in self._headers:
            with (self.folder / piece.file).open("rb") as stream:
                length = int.from_bytes(stream.read(LENGTH), "little")
                if length > os.fstat(stream.fileno()).st_size:
                    raise ValueError("it is not a safetensors file")
                self._headers[piece.file] = LENGTH + length, json.loads(stream.read(length))
        base, header = self._headers[piece.file]
        try:
            begin, end = header[piece.key]["data_offsets"]
            length = end - begin
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"it does not hold {piece.key}") from error
        if begin < 0 or length != piece.box.elements * dtype.itemsize:
            raise ValueError(f"it holds {piece.key} in another size")
        offset: int = base + begin
        return offset
