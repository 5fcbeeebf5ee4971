"""Save of shards by all ranks: each writes one file, and rank 0 publishes the checkpoint when all have reported."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from slipway.base.errors import SlipwayError, from_json, to_json
from slipway.checkpoint.format import Shards, Tensors, write_file
from slipway.checkpoint.host_buffers import HostBuffers
from slipway.checkpoint.host_copies import Transfer
from slipway.checkpoint.saved_tensors import missing_elements, sharded_tensors
from slipway.checkpoint.shards import Box, Ownership, Place, is_sharded, local_box, local_part
from slipway.dist.collectives import as_bytes
from slipway.dist.communicator import Communicator

Report = dict[str, Any]
"""Result of a rank's part of a save: its pieces and the bytes of its file, or an error."""

FILE = "shards.{rank}.safetensors"


class ShardWriter:
    """Writer of this rank's shards, of one checkpoint at a time. Each rank has one."""

    def __init__(self, comm: Communicator) -> None:
        """Divide the shards among the ranks of ``comm``."""
        self._comm, self._ownership = comm, Ownership(comm)
        self._buffers = HostBuffers()
        self._thread: threading.Thread | None = None
        self._report: Report | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a save awaits ``report``."""
        return self._report is not None

    @property
    def is_written(self) -> bool:
        """Whether a save awaits ``report``, which would return without waiting."""
        return self._report is not None and not (self._thread and self._thread.is_alive())

    def reserve(self, tensors: Tensors) -> None:
        """Allocate buffers for the shards in ``tensors`` in the background; all ranks must call this."""
        self._join()
        own = {"shards": {key: part for key, (_, _, part) in self._owned(tensors).items()}}
        self._buffers.allocate(own, pinned=True)
        self._thread = threading.Thread(
            target=self._buffers.allocate, args=(own,), kwargs={"pinned": False}, name="shard buffers"
        )
        self._thread.start()

    def write(self, tensors: Tensors, folder: Path) -> None:
        """Copy this rank's shards in ``tensors``, and write them to ``folder`` in the background.

        All ranks must call this. The tensors may change as soon as it returns. ``report`` tells errors.
        """
        self._join()
        owned = self._owned(tensors)
        self._report = {"error": None, "bytes": 0, "pieces": []}
        try:
            copies, transfers = self._buffers.copy({"shards": {key: part for key, (_, _, part) in owned.items()}})
        except RuntimeError as error:  # too little memory on this rank: the others write theirs
            self._report["error"] = to_json(error)
            return
        pieces = {key: (places, box, copies["shards"][key]) for key, (places, box, _) in owned.items()}
        path = folder / FILE.format(rank=self._comm.world.rank)
        self._thread = threading.Thread(
            target=self._write, args=(self._report, pieces, transfers, path), name="shard writer"
        )
        self._thread.start()

    def report(self) -> Report:
        """Wait until the shards are written, and return the report of the save."""
        self._join()
        report, self._report = self._report, None
        assert report is not None
        return report

    def _join(self) -> None:
        if self._thread:
            self._thread.join()
            self._thread = None

    def _owned(self, tensors: Tensors) -> dict[str, tuple[list[Place], Box, Tensor]]:
        """Return the boxes that this rank saves, by their names in the file; all ranks must call this.

        A box belongs to several places if tensors share their memory, as tied weights do.
        """
        parts: dict[tuple[Any, ...], tuple[list[Place], Box, Tensor]] = {}
        for component, named in tensors.items():
            for name, tensor in named.items():
                if is_sharded(tensor) and (box := local_box(tensor)):
                    part = local_part(tensor)
                    memory = part.data_ptr(), part.stride(), part.dtype, box
                    parts.setdefault(memory, ([], box, part))[0].append((component, name))
        held = {places[0]: (box, part.nbytes) for places, box, part in parts.values()}
        owned = self._ownership.owned(held)
        return {_key(each[0][0], each[1]): each for each in parts.values() if (each[0][0], each[1]) in owned}

    @staticmethod
    def _write(
        report: Report,
        pieces: dict[str, tuple[list[Place], Box, Tensor]],
        transfers: Sequence[Transfer],
        path: Path,
    ) -> None:
        try:
            for transfer in transfers:
                transfer.wait()
            for key, (places, box, part) in pieces.items():
                digest = hashlib.sha256(as_bytes(part).numpy().data).hexdigest()
                report["pieces"] += [[*place, *box, key, digest] for place in places]
            if pieces:
                write_file(path, {key: part for key, (_, _, part) in pieces.items()})
                report["bytes"] = path.stat().st_size
        except Exception as error:  # noqa: BLE001 -- rank 0 reports any error
            report["error"] = to_json(error)


class ShardedSave:
    """A save of shards in progress, on rank 0."""

    def __init__(self, folder: Path, tensors: Tensors, ranks: int) -> None:
        """Expect the shards of ``tensors``, by this many ranks, in a hidden folder from ``CheckpointStore.begin``."""
        self.folder, self._shapes, self._ranks = folder, _shapes(tensors), ranks
        self._reports: queue.SimpleQueue[list[Report]] = queue.SimpleQueue()

    def settle(self, reports: list[Report]) -> None:
        """Let ``wait`` return. The save is abandoned if the reports are not those of all ranks."""
        self._reports.put(reports)

    def wait(self) -> Shards:
        """Wait for ``settle``, and return the shards of all ranks.

        Raises:
            SlipwayError: if a rank could not write its shards, or if they do not make up whole tensors.
        """
        reports = self._reports.get()
        if len(reports) != self._ranks:
            raise SlipwayError("checkpoint-not-written", "the ranks ended before all had written their shards")
        files: dict[str, dict[str, Any]] = {}
        entry: dict[str, Any] = {}
        for (component, name), (shape, dtype) in self._shapes.items():
            entry.setdefault(component, {})[name] = {"shape": shape, "dtype": dtype, "pieces": []}
        for rank, report in enumerate(reports):
            if report["error"]:
                raise from_json(report["error"])
            if report["pieces"]:
                files[FILE.format(rank=rank)] = {"bytes": report["bytes"]}
            for component, name, offset, size, key, digest in report["pieces"]:
                piece = {"offset": offset, "size": size, "file": FILE.format(rank=rank), "key": key, "sha256": digest}
                entry[component][name]["pieces"].append(piece)
        if fault := missing_elements(sharded_tensors(entry)):
            raise SlipwayError("checkpoint-not-written", f"the shards of the ranks do not fit together: {fault}")
        return Shards(files, entry)


def _key(place: Place, box: Box) -> str:
    """Return the name of a box in the file of the rank that saves it."""
    return f"{'/'.join(place)}@{','.join(map(str, box.offset))}"


def _shapes(tensors: Tensors) -> dict[Place, tuple[list[int], str]]:
    return {
        (component, name): ([*tensor.shape], str(tensor.dtype).removeprefix("torch."))
        for component, named in tensors.items()
        for name, tensor in named.items()
        if is_sharded(tensor)
    }
