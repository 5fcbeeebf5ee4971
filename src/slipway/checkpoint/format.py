"""A checkpoint on disk: a folder of safetensors files and a manifest with their SHA-256 digests.

A checkpoint holds no pickles. ``model.safetensors`` holds the unwrapped model's parameters and buffers::

    model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file, save_file
from torch import Tensor

from slipway.base.bounded_read import read_whole
from slipway.base.contract import BEST, LATEST, checkpoint_folder
from slipway.base.errors import warn
from slipway.base.files import sync_folder, write_json
from slipway.checkpoint.header import SCHEMA, SHARDED_SCHEMA, Header, from_manifest, to_manifest
from slipway.checkpoint.saved_tensors import (
    Entry,
    Piece,
    SavedTensor,
    SavedTensors,
    missing_elements,
    sharded_tensors,
)
from slipway.checkpoint.shards import whole

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
REPLACED = "replaced"
"""Part of a checkpoint's hidden name while another checkpoint of the same step replaces it."""

PIECE = 1 << 24
"""Bytes hashed per read: after each read the writer waits for the GIL, which training code may hold."""

ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that mean that a file is missing; any other error, such as ESTALE, does not mean a damaged checkpoint."""

Tensors = dict[str, dict[str, Tensor]]
"""A checkpoint's tensors: by file (model, optimizer, ema), then by name."""


class DamagedError(Exception):
    """A checkpoint does not match its manifest; the message names the file and the mismatch."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's content: tensors and header."""

    tensors: Tensors
    header: Header
    sharded: SavedTensors | None = None
    """Of a checkpoint on disk: the tensors that the ranks have saved in shards; ``tensors`` lacks these."""
    folder: Path | None = None
    """The folder from which the checkpoint was read."""

    @property
    def components(self) -> set[str]:
        """Names of the components whose state the checkpoint holds."""
        return {*self.tensors, *self.header.trees, *(self.sharded.components if self.sharded else ())}

    @property
    def on_disk(self) -> SavedTensors:
        """All tensors of a checkpoint on disk, as they are stored in its folder."""
        assert self.folder
        unsharded = {
            (component, name): SavedTensor(
                tuple(tensor.shape), tensor.dtype, [Piece(whole(tensor.shape), f"{component}.safetensors", name)]
            )
            for component, named in self.tensors.items()
            for name, tensor in named.items()
        }
        return SavedTensors(self.folder, {**unsharded, **(self.sharded.tensors if self.sharded else {})})

    def whole(self, component: str) -> dict[str, Tensor]:
        """Return the tensors of ``component``, read from disk if they were saved in shards."""
        found = dict(self.tensors.get(component, {}))
        if self.sharded:
            found |= {name: self.sharded.read((component, name)) for name in self.sharded.names(component)}
        return found


class Shards(NamedTuple):
    """The shards of a checkpoint in the files of the ranks that wrote them."""

    files: dict[str, dict[str, Any]]
    """The bytes of each file, as in a manifest."""
    entry: Entry
    """The manifest's entry for the tensors."""


NO_SHARDS = Shards({}, {})


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write ``checkpoint`` to the folder ``path`` atomically and durably.

    Raises:
        OSError, SafetensorError: if the disk is full or read-only; ``path`` is then unchanged.
    """
    temporary = make_temporary(path)
    try:
        write_manifest(temporary, checkpoint.header, write_tensors(temporary, checkpoint.tensors))
        publish(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def make_temporary(path: Path) -> Path:
    """Create and return an empty folder, hidden from readers, in which to write the checkpoint ``path``."""
    temporary = _hidden(path, "new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o755)  # less the umask
    return temporary


def publish(temporary: Path, path: Path) -> None:
    """Rename ``temporary``, which holds a complete checkpoint, to ``path``, and remove the one it replaces."""
    replaced = _replace_checkpoint(temporary, path)
    sync_folder(path.parent)
    if replaced:
        remove(replaced)


def write_tensors(folder: Path, tensors: Tensors) -> dict[str, dict[str, Any]]:
    """Write a file for each component to ``folder``; return their entries in the manifest."""
    files = {}
    for name, named in tensors.items():
        file = folder / f"{name}.safetensors"
        write_file(file, named)
        files[file.name] = {"sha256": _sha256(file), "bytes": file.stat().st_size}
    return files


def write_file(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write ``tensors`` to the safetensors file ``path`` durably."""
    save_file(tensors, path)
    path.chmod(path.parent.stat().st_mode & 0o666)  # mode 0666 less the umask; safetensors creates files with mode 0600
    sync_file(path)


def write_manifest(folder: Path, header: Header, files: dict[str, dict[str, Any]], shards: Shards = NO_SHARDS) -> None:
    """Write the manifest of a checkpoint whose ``files`` and ``shards`` are in ``folder``."""
    manifest = {**to_manifest(header), "files": {**files, **shards.files}}
    if shards.entry:
        manifest |= {"schema": SHARDED_SCHEMA, "sharded": shards.entry}
    write_json(folder / MANIFEST, {**manifest, "manifest_sha256": _digest(manifest)})


def _replace_checkpoint(temporary: Path, path: Path) -> Path | None:
    """Rename ``temporary`` to ``path``; return the hidden name of the checkpoint that it replaced, if any.

    The replaced checkpoint is of the same step: saved when the run stopped at the end of an epoch, or damaged. If the
    process is killed between the two renames, the old checkpoint remains complete under its hidden name; see
    ``recover``.
    """
    if not path.exists():
        temporary.rename(path)
        return None
    replaced = path.rename(_hidden(path, REPLACED))
    try:
        temporary.rename(path)
    except BaseException:
        replaced.rename(path)
        raise
    return replaced


def discard(path: Path) -> None:
    """Remove the checkpoint ``path``, after hiding it by a rename, so that it never appears partly removed."""
    try:
        hidden = path.rename(_hidden(path, "discarded"))
    except OSError as error:
        warn(log, "cannot-remove", "%s cannot be removed: %s", path, error.strerror)
    else:
        remove(hidden)


def remove(folder: Path) -> None:
    """Remove a folder that is no longer needed; warn if it cannot be removed."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        warn(log, "cannot-remove", "%s cannot be removed: %s", folder, error.strerror)


def recover(folder: Path) -> None:
    """Rename misnamed checkpoints in ``folder`` to their own names; see ``misnamed``."""
    for name, found in misnamed(folder).items():
        found.rename(folder / name)


def misnamed(folder: Path) -> dict[str, Path]:
    """Return the checkpoints in ``folder`` that exist only under another name, by their own names.

    This happens if a process was killed while it replaced a checkpoint, which leaves a hidden folder, or if only
    ``latest`` or ``best`` was copied by a program that follows links, such as ``cp -rL``.
    """
    found = {}
    for link in (folder / BEST, folder / LATEST):
        if is_copied(link):
            with contextlib.suppress(DamagedError):
                found[checkpoint_folder(read_header(link).position.step)] = link
    for hidden in folder.glob(f".*.{REPLACED}.*"):
        found[hidden.name.removeprefix(".").partition(".")[0]] = hidden
    return {name: path for name, path in found.items() if not (folder / name).exists()}


def is_copied(link: Path) -> bool:
    """Return whether ``link`` is a folder: ``cp -rL`` and ``scp -r`` turn links to checkpoints into folders."""
    return link.is_dir() and not link.is_symlink()


def _hidden(path: Path, what: str) -> Path:
    """Return a name for the checkpoint ``path`` that readers ignore."""
    return path.with_name(f".{path.name}.{what}.{os.getpid()}")


def read_header(path: Path) -> Header:
    """Return the header of the checkpoint ``path`` without reading its other files.

    Raises:
        DamagedError: if the manifest is missing, damaged, or of another schema.
        OSError: if the disk does not respond.
    """
    return read_manifest(path)[0]


def read_manifest(path: Path) -> tuple[Header, dict[str, Any], SavedTensors | None]:
    """Return the header of the checkpoint ``path``, size and digest of its files by name, and its sharded tensors.

    Raises:
        DamagedError: if the manifest is missing, damaged, or of another schema.
        OSError: if the disk does not respond.
    """
    try:
        manifest = dict(json.loads(read_whole(path / MANIFEST)))
        digest, schema = manifest.pop("manifest_sha256"), manifest["schema"]
    except ABSENT as error:
        raise DamagedError(f"{MANIFEST} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{MANIFEST} is not a manifest") from error
    if schema not in {SCHEMA, SHARDED_SCHEMA}:
        raise DamagedError(f"it has schema {schema}, but this version reads schema {SCHEMA}")
    if digest != _digest(manifest):
        raise DamagedError(f"the sha256 of {MANIFEST} does not match the one in it")
    try:
        header, files, entry = from_manifest(manifest), manifest["files"], manifest.get("sharded", {})
        tensors = sharded_tensors(entry)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{MANIFEST} is not a manifest") from error
    if fault := missing_elements(tensors):
        raise DamagedError(fault)
    return header, files, SavedTensors(path, tensors) if tensors else None


def verify(path: Path, *, with_shards: bool = True) -> Checkpoint:
    """Return the checkpoint ``path`` without its tensors, after verifying all files against its manifest.

    Args:
        path: the checkpoint's folder.
        with_shards: whether to verify the shards too. All ranks together can do that faster: ``SavedTensors.damaged``.

    Raises:
        DamagedError: as ``read_header`` does, or if a file is missing, has another size, or has another digest.
        OSError: if the disk does not respond.
    """
    header, files, sharded = read_manifest(path)
    for name, expected in files.items():
        try:
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                raise DamagedError(f"{name} has {size} bytes instead of {expected['bytes']}")
            if "sha256" in expected and _sha256(path / name) != expected["sha256"]:
                raise DamagedError(f"the sha256 of {name} does not match the one in the manifest")
        except ABSENT as error:
            raise DamagedError(f"{name} cannot be read: {error.strerror}") from error
    if with_shards and sharded and (fault := sharded.damaged()):
        raise DamagedError(fault)
    components = [name.removesuffix(".safetensors") for name, entry in files.items() if "sha256" in entry]
    return Checkpoint({name: {} for name in components}, header, sharded, path)


def read_checkpoint(path: Path, *, with_shards: bool = True) -> Checkpoint:
    """Verify and return the checkpoint ``path``, with its tensors on the CPU, except sharded ones.

    Args:
        path: the checkpoint's folder.
        with_shards: see ``verify``.

    Raises:
        DamagedError, OSError: as ``verify`` does.
    """
    found = verify(path, with_shards=with_shards)
    return replace(found, tensors={name: load_file(path / f"{name}.safetensors") for name in found.tensors})


def read_sharded(path: Path) -> SavedTensors | None:
    """Return the sharded tensors of the checkpoint ``path``, which another rank has verified.

    Raises:
        DamagedError, OSError: as ``read_header`` does.
    """
    return read_manifest(path)[2]


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def sync_files(folder: Path) -> None:
    """Make the content of every file in ``folder`` and its subfolders durable, by fsync."""
    for path in folder.rglob("*"):
        if path.is_file():
            sync_file(path)


def sync_file(path: Path) -> None:
    """Make the content of ``path`` durable, by fsync."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(PIECE):
            digest.update(chunk)
    return digest.hexdigest()
