"""Checkpoints on disk: atomic writes, verification, retention and fallback."""

import errno
import json
import logging
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

from messages import assert_names, assert_warning, refused
from slipway.base.errors import LostFolderError
from slipway.checkpoint.format import MANIFEST, Checkpoint, DamagedError, read_checkpoint, read_header, verify
from slipway.checkpoint.format import write_checkpoint as write
from slipway.checkpoint.header import Header, Metric, Position
from slipway.checkpoint.store import CheckpointStore, find_checkpoint
from support import file_size_limit


def checkpoint_of(step=5, *, accuracy=None, size=100):
    """Return a checkpoint whose tensors hold its step."""
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {"conv.weight": torch.randn(size, generator=generator), "bn.count": torch.tensor(step)},
        "optimizer": {"exp_avg/conv.weight": torch.randn(4, 3, dtype=torch.float64, generator=generator)},
    }
    metric = None if accuracy is None else Metric("accuracy", accuracy)
    return Checkpoint(tensors, Header(Position(step=step, epoch=1), metric, {"identity": {"train.seed": 0}}))


def require_equal(found, expected):
    assert {file: list(named) for file, named in found.tensors.items()} == {
        file: sorted(named) for file, named in expected.tensors.items()
    }
    for file, named in expected.tensors.items():
        for name, tensor in named.items():
            assert torch.equal(found.tensors[file][name], tensor)
            assert found.tensors[file][name].dtype == tensor.dtype
    assert found.header == expected.header


def add(store, *steps):
    for step in steps:
        store.add(checkpoint_of(step))


def damaged(path, *values):
    """Assert that checkpoint ``path`` is damaged and that the error names ``values``."""
    with pytest.raises(DamagedError) as error:
        read_checkpoint(path)
    assert_names(str(error.value), *values)


def flip_bit(path, place):
    data = bytearray(path.read_bytes())
    data[place // 8 % len(data)] ^= 1 << place % 8
    path.write_bytes(data)


class TestCheckpointFormat:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "step_00000005"
        write(path, checkpoint_of())
        return path

    def test_written_checkpoint_is_read_back_unchanged(self, path):
        require_equal(read_checkpoint(path), checkpoint_of())

    def test_manifest_lists_size_of_every_other_file(self, path):
        found = verify(path)
        files = [f"{name}.safetensors" for name in found.tensors]
        manifest = json.loads((path / MANIFEST).read_text())
        assert {MANIFEST, *files} == {MANIFEST, *manifest["files"]} == {file.name for file in path.iterdir()}
        assert found.header == checkpoint_of().header
        assert manifest["files"]["model.safetensors"]["bytes"] == (path / "model.safetensors").stat().st_size
        assert manifest["schema"] == 2

    @pytest.mark.parametrize(
        ("umask", "folder", "file"), [(0o022, 0o755, 0o644), (0o027, 0o750, 0o640), (0o077, 0o700, 0o600)]
    )
    def test_checkpoint_modes_follow_umask(self, tmp_path, umask, folder, file):
        before = os.umask(umask)
        try:
            write(tmp_path / "step_00000001", checkpoint_of())
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "step_00000001").stat().st_mode) == folder
        assert {stat.S_IMODE(entry.stat().st_mode) for entry in (tmp_path / "step_00000001").iterdir()} == {file}

    def test_tensor_order_does_not_change_file_bytes(self, path, tmp_path):
        again = checkpoint_of()
        reordered = {file: dict(reversed(named.items())) for file, named in reversed(again.tensors.items())}
        write(tmp_path / "again", Checkpoint(reordered, again.header))
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert (tmp_path / "again" / name).read_bytes() == (path / name).read_bytes()

    @pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
    @pytest.mark.parametrize("kept", [0, -1])
    def test_truncated_file_is_reported_as_damage(self, path, name, kept):
        size = (path / name).stat().st_size
        os.truncate(path / name, kept % size)
        damaged(path, name, kept % size, size)

    @pytest.mark.parametrize("place", [0, 7, 8 * 60 + 3, 8 * 300 + 5, -1])
    def test_flipped_bit_in_tensors_is_reported_as_damage(self, path, place):
        flip_bit(path / "model.safetensors", place)
        damaged(path, "sha256", "model.safetensors")

    @pytest.mark.parametrize("name", ["model.safetensors", MANIFEST])
    def test_missing_file_is_reported_as_damage(self, path, name):
        (path / name).unlink()
        damaged(path, name, os.strerror(errno.ENOENT))

    @pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b"{}", b'{"schema": 1}', b"\xff\xfe", b"\0" * 400])
    def test_invalid_manifest_is_reported_as_damage(self, path, data):
        (path / MANIFEST).write_bytes(data)
        damaged(path, MANIFEST)

    def test_flipped_bit_in_manifest_is_reported_as_damage(self, path):
        manifest = path / MANIFEST
        for place in range(0, 8 * manifest.stat().st_size, 7):  # each byte, and each of its bits in turn
            flip_bit(manifest, place)
            with pytest.raises(DamagedError):
                read_header(path)
            flip_bit(manifest, place)
        assert read_header(path).position.step == 5

    def test_unknown_manifest_schema_is_refused_with_its_number(self, path):
        manifest = json.loads((path / MANIFEST).read_text())
        (path / MANIFEST).write_text(json.dumps(manifest | {"schema": 99}))
        damaged(path, "schema", 99, 2)

    def test_partial_save_of_same_process_is_replaced(self, path):
        left = path.with_name(f".{path.name}.new.{os.getpid()}")
        left.mkdir()
        (left / "model.safetensors").write_text("half of it")
        write(path, checkpoint_of())
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_failed_save_leaves_only_old_checkpoint(self, path):
        with file_size_limit(100), pytest.raises(Exception, match=r"os error 27|File too large"):
            write(path, checkpoint_of(6))
        require_equal(read_checkpoint(path), checkpoint_of())
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_all_files_are_fsynced_before_rename(self, path, monkeypatch):
        synced, fsync, rename = [], os.fsync, Path.rename

        def watched_fsync(descriptor):
            synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name.removeprefix(".").split(".json")[0])
            fsync(descriptor)

        def watched_rename(self, target):
            synced.append("renamed")
            return rename(self, target)

        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(Path, "rename", watched_rename)
        write(path.with_name("step_00000006"), checkpoint_of(6))
        before, after = synced[: synced.index("renamed")], synced[synced.index("renamed") :]
        assert {"model.safetensors", "optimizer.safetensors", "manifest"} <= set(before)
        assert path.parent.name in after, "the rename comes last"

    def test_checkpoint_of_same_step_is_replaced(self, path):
        other = Checkpoint({"model": {"w": torch.ones(3)}}, Header(Position(step=5)))
        write(path, other)
        require_equal(read_checkpoint(path), other)
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_old_checkpoint_is_restored_if_rename_of_new_fails(self, path, monkeypatch):
        rename = Path.rename

        def failing(self, target):
            if ".new." in self.name:
                raise OSError(5, "Input/output error")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", failing)
        with pytest.raises(OSError, match="Input/output error"):
            write(path, checkpoint_of(step=6))
        require_equal(read_checkpoint(path), checkpoint_of())
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_old_checkpoint_is_removed_after_new_one_is_in_place(self, path, monkeypatch):
        there, remove = [], shutil.rmtree

        def watched(folder, **options):
            there.append(path.exists())
            remove(folder, **options)

        monkeypatch.setattr(shutil, "rmtree", watched)
        write(path, checkpoint_of())
        assert there
        assert all(there)


class TestStore:
    @pytest.fixture
    def store(self, tmp_path):
        return CheckpointStore(tmp_path, keep=2)

    @staticmethod
    def names(store):
        """Return the names in the folder of ``store`` and the targets of its links."""
        entries = store.path.iterdir()
        return sorted(f"{entry.name} -> {entry.readlink()}" if entry.is_symlink() else entry.name for entry in entries)

    @pytest.mark.parametrize(
        ("saved", "latest", "best", "kept"),
        [
            ([(1, 0.5), (2, 0.9), (3, None), (4, 0.9), (5, 0.8), (6, None)], 6, 2, [2, 5, 6]),
            ([(1, 0.9), (2, 0.1), (3, 0.2), (4, 0.95)], 4, 4, [3, 4]),  # the former best is discarded
            ([(1, float("nan")), (2, 0.1), (3, float("inf"))], 3, 2, [2, 3]),
            ([(1, 0.5), (2, 0.9), (2, None)], 2, 1, [1, 2]),  # the best, saved again without an evaluation
            ([(1, 0.5), (2, 0.9), (2, None), (1, None)], 1, None, [1, 2]),
            ([(1, None), (2, None), (3, 0.2), (4, 0.1), (5, 0.1)], 5, 3, [3, 4, 5]),
        ],
    )
    def test_newest_and_best_checkpoints_are_kept(self, store, saved, latest, best, kept):
        for step, accuracy in saved:
            store.add(checkpoint_of(step, accuracy=accuracy))
        links = (
            [f"latest -> step_{latest:08d}"]
            if best is None
            else [f"best -> step_{best:08d}", f"latest -> step_{latest:08d}"]
        )
        assert self.names(store) == [*links, *(f"step_{step:08d}" for step in kept)]

    def test_store_changes_nothing_after_run_folder_is_lost(self, tmp_path):
        def lost():
            raise LostFolderError(lock="lock")

        (tmp_path / ".step_00000001.new.7").mkdir()
        with pytest.raises(LostFolderError):
            CheckpointStore(tmp_path, keep=2, check_owner=lost).add(checkpoint_of(1))
        assert [entry.name for entry in tmp_path.iterdir()] == [".step_00000001.new.7"]

    def test_damaged_checkpoint_is_skipped_with_warning(self, store, caplog):
        add(store, 1, 2)
        flip_bit(store.path / "step_00000002" / "model.safetensors", 99)
        with caplog.at_level(logging.WARNING):
            require_equal(store.newest(), checkpoint_of(1))
        assert_warning(caplog.text, "damaged-checkpoint", store.path / "step_00000002", "sha256", "model.safetensors")

    def test_run_with_only_damaged_checkpoints_is_refused(self, store):
        add(store, 1, 2)
        for step in (1, 2):
            (store.path / f"step_{step:08d}" / MANIFEST).unlink()
        with refused("damaged-checkpoint", 2, store.path, code=78):
            store.newest()

    def test_damaged_checkpoints_are_set_aside_and_ignored_after_fallback(self, store, caplog):
        for step in (1, 8, 9):
            store.add(checkpoint_of(step, accuracy=step / 10))
        for step in (8, 9):
            (store.path / f"step_{step:08d}" / "model.safetensors").unlink()
        add(store, 1)
        store.set_aside_after(1)
        assert_warning(caplog.text, "checkpoint-set-aside", store.path / "step_00000009", "step_00000009.set-aside.1")
        aside = ["step_00000008.set-aside.1", "step_00000009.set-aside.1"]
        # the only checkpoint not set aside was not evaluated, so there is no best
        assert self.names(store) == ["latest -> step_00000001", "step_00000001", *aside]
        assert not store.is_newest(store.path / aside[1])
        for step in (2, 3, 9):
            store.add(checkpoint_of(step, accuracy=step / 100))
        newest = ["step_00000003", aside[0], "step_00000009", aside[1]]
        assert self.names(store) == ["best -> step_00000009", "latest -> step_00000009", *newest]
        store.set_aside_after(3)
        assert "step_00000009.set-aside.2" in self.names(store)
        store.add(checkpoint_of(9, accuracy=0.5))
        assert "best -> step_00000009" in self.names(store)
        assert store.is_newest(store.path / "step_00000009")

    def test_no_checkpoint_is_set_aside_if_none_is_newer(self, store):
        add(store, 4)
        store.set_aside_after(4)
        assert self.names(store) == ["latest -> step_00000004", "step_00000004"]

    def test_stale_links_of_killed_attempt_are_updated(self, store):
        for step in (4, 8):
            store.add(checkpoint_of(step, accuracy=step / 10))
        for link in ("latest", "best"):
            (store.path / link).unlink()
            (store.path / link).symlink_to("step_00000004")
        store.set_aside_after(8)
        assert {(store.path / link).readlink() for link in ("latest", "best")} == {Path("step_00000008")}

    @pytest.mark.parametrize("broken", ["read_manifest", "load_file", "_sha256"])
    def test_disk_error_is_not_reported_as_damage(self, store, monkeypatch, broken):
        add(store, 1, 2)

        def stale(path, *_):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))

        with monkeypatch.context() as patch:
            patch.setattr(f"slipway.checkpoint.format.{broken}", stale)
            with pytest.raises(OSError, match="Stale file handle"):
                store.newest()
        require_equal(store.newest(), checkpoint_of(2))

    def test_unremovable_old_checkpoint_warns_and_saving_continues(self, store, monkeypatch, caplog):
        rmtree = shutil.rmtree

        def failing(path, *arguments, **options):
            if ".step_00000001.discarded" in str(path):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            rmtree(path, *arguments, **options)

        monkeypatch.setattr(shutil, "rmtree", failing)
        add(store, *range(1, 6))
        require_equal(store.newest(), checkpoint_of(5))
        assert [name for name in self.names(store) if name.startswith("step_")] == ["step_00000004", "step_00000005"]
        assert_warning(caplog.text, "cannot-remove", ".step_00000001.discarded", os.strerror(errno.EACCES))

    @pytest.mark.parametrize("pointer", ["missing", "dangling"])
    def test_largest_step_is_newest_if_latest_link_is_broken(self, store, pointer):
        add(store, 1, 2)
        (store.path / "latest").unlink()
        if pointer == "dangling":
            (store.path / "latest").symlink_to("step_00000077")
        require_equal(store.newest(), checkpoint_of(2))

    def test_damaged_best_checkpoint_is_replaced(self, store):
        store.add(checkpoint_of(1, accuracy=0.9))
        (store.path / "step_00000001" / MANIFEST).write_text("")
        store.add(checkpoint_of(2, accuracy=0.1))
        assert (store.path / "best").readlink() == Path("step_00000002")

    def test_replacement_interrupted_by_kill_is_undone(self, store):
        store.add(checkpoint_of(1))
        path = store.path / "step_00000001"
        shutil.copytree(path, store.path / ".step_00000001.new.4711")
        path.rename(store.path / ".step_00000001.replaced.4711")
        require_equal(find_checkpoint("auto", store), checkpoint_of(1))
        store.add(checkpoint_of(2))
        assert self.names(store) == ["latest -> step_00000002", "step_00000001", "step_00000002"]

    def test_partial_save_of_killed_process_is_ignored_and_removed(self, store):
        store.add(checkpoint_of(1))
        shutil.copytree(store.path / "step_00000001", store.path / ".step_00000002.new.4711")
        shutil.copytree(store.path / "step_00000001", store.path / ".step_00000000.discarded.4711")
        require_equal(store.newest(), checkpoint_of(1))
        store.add(checkpoint_of(3))
        assert self.names(store) == ["latest -> step_00000003", "step_00000001", "step_00000003"]


class TestFindCheckpoint:
    @pytest.fixture
    def run(self, tmp_path):
        """Return the folder of another run, with checkpoints of steps 1 and 2."""
        store = CheckpointStore(tmp_path / "other" / "checkpoints", keep=2)
        store.path.mkdir(parents=True)
        add(store, 1, 2)
        return tmp_path / "other"

    @pytest.fixture
    def own(self, tmp_path):
        (tmp_path / "checkpoints").mkdir()
        return CheckpointStore(tmp_path / "checkpoints", keep=2)

    def test_empty_resume_option_finds_no_checkpoint(self, own):
        own.add(checkpoint_of(7))
        assert find_checkpoint("", own) is None

    def test_auto_finds_newest_checkpoint_of_run_or_none(self, own):
        assert find_checkpoint("auto", own) is None
        own.add(checkpoint_of(7))
        require_equal(find_checkpoint("auto", own), checkpoint_of(7))

    @pytest.mark.parametrize(("named", "step"), [("checkpoints/step_00000001", 1), ("checkpoints/latest", 2), ("", 2)])
    def test_resume_path_may_be_checkpoint_or_run_folder(self, own, run, named, step):
        require_equal(find_checkpoint(str(run / named), own), checkpoint_of(step))

    def test_damaged_checkpoint_at_given_path_is_refused(self, own, run):
        path = run / "checkpoints" / "step_00000002"
        (path / "model.safetensors").write_bytes(b"")
        with refused("damaged-checkpoint", path, "model.safetensors", code=78):
            find_checkpoint(str(path), own)

    def test_path_without_checkpoint_is_refused(self, own, tmp_path):
        with refused("no-checkpoint", tmp_path / "gone", MANIFEST, code=78):
            find_checkpoint(str(tmp_path / "gone"), own)

    def test_own_checkpoints_take_precedence_over_those_of_another_run(self, own, run):
        own.add(checkpoint_of(9))
        require_equal(find_checkpoint(str(run), own), checkpoint_of(9))
