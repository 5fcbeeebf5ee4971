"""Checkpoints on disk: written whole, verified before use, kept, and fallen back on."""

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

from messages import assert_names, assert_warning, refused
from slipway.checkpoint.components import join
from slipway.checkpoint.folder import MANIFEST, Checkpoint, DamagedError, read_checkpoint, read_header, verify
from slipway.checkpoint.folder import write_checkpoint as write
from slipway.checkpoint.header import Header, Metric
from slipway.checkpoint.store import CheckpointStore, find_checkpoint
from slipway.errors import LostFolderError
from slipway.position import Position
from support import file_size_limit


def checkpoint_of(step=5, *, accuracy=None, size=100):
    """Return a checkpoint whose tensors tell its step."""
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {"conv.weight": torch.randn(size, generator=generator), "bn.count": torch.tensor(step)},
        "optimizer": {"exp_avg/conv.weight": torch.randn(4, 3, dtype=torch.float64, generator=generator)},
    }
    metric = None if accuracy is None else Metric("accuracy", accuracy)
    return Checkpoint(tensors, Header(Position(step=step, epoch=1), metric, {"identity": {"train.seed": 0}}))


def as_schema_1(path, *, accuracy, scaler):
    """Rewrite the manifest of the checkpoint ``path`` as version 0.1 wrote it."""
    files = json.loads((path / MANIFEST).read_text())["files"]
    position = {"step": 5, "epoch": 1, "samples": 64, "bad": 0, "elapsed": 2.5}
    manifest = {"schema": 1, "files": files, **position, "accuracy": accuracy, "seed": 0, "scaler": scaler}
    manifest |= {"identity": {"train.seed": 0}, "identity_sha256": "1234", "may_differ": "every other key"}
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps({**manifest, "manifest_sha256": digest}) + "\n")


def require_equal(found, expected):
    assert {file: list(named) for file, named in found.tensors.items()} == {
        file: sorted(named) for file, named in expected.tensors.items()
    }
    for file, named in expected.tensors.items():
        for name, tensor in named.items():
            assert torch.equal(found.tensors[file][name], tensor)
            assert found.tensors[file][name].dtype == tensor.dtype
    assert found.header == expected.header


def damaged(path, *values):
    """Hold that the checkpoint ``path`` is damaged, and that the error names ``values``."""
    with pytest.raises(DamagedError) as error:
        read_checkpoint(path)
    assert_names(str(error.value), *values)


def flip_bit(path, place):
    data = bytearray(path.read_bytes())
    data[place // 8 % len(data)] ^= 1 << place % 8
    path.write_bytes(data)


class TestOneCheckpoint:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "step_00000005"
        write(path, checkpoint_of())
        return path

    def test_what_is_written_is_read_back(self, path):
        require_equal(read_checkpoint(path), checkpoint_of())

    def test_the_manifest_vouches_for_every_other_file(self, path):
        header, files = verify(path)
        manifest = json.loads((path / MANIFEST).read_text())
        assert {MANIFEST, *files} == {MANIFEST, *manifest["files"]} == {file.name for file in path.iterdir()}
        assert header == checkpoint_of().header
        assert manifest["files"]["model.safetensors"]["bytes"] == (path / "model.safetensors").stat().st_size
        assert manifest["schema"] == 2

    @pytest.mark.parametrize(
        ("umask", "folder", "file"), [(0o022, 0o755, 0o644), (0o027, 0o750, 0o640), (0o077, 0o700, 0o600)]
    )
    def test_the_umask_says_who_may_read_it(self, tmp_path, umask, folder, file):
        before = os.umask(umask)
        try:
            write(tmp_path / "step_00000001", checkpoint_of())
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "step_00000001").stat().st_mode) == folder
        assert {stat.S_IMODE(entry.stat().st_mode) for entry in (tmp_path / "step_00000001").iterdir()} == {file}

    def test_nothing_else_is_left(self, path):
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_the_same_tensors_in_any_order_give_the_same_bytes(self, path, tmp_path):
        again = checkpoint_of()
        reordered = {file: dict(reversed(named.items())) for file, named in reversed(again.tensors.items())}
        write(tmp_path / "again", Checkpoint(reordered, again.header))
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert (tmp_path / "again" / name).read_bytes() == (path / name).read_bytes()

    @pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
    def test_a_truncated_file_is_damage(self, path, name):
        size = (path / name).stat().st_size
        os.truncate(path / name, size - 1)
        damaged(path, name, size - 1, size)

    @pytest.mark.parametrize("place", [0, 7, 8 * 60 + 3, 8 * 300 + 5, -1])
    def test_a_flipped_bit_is_damage(self, path, place):
        flip_bit(path / "model.safetensors", place)
        damaged(path, "sha256", "model.safetensors")

    def test_an_emptied_file_is_damage(self, path):
        (path / "optimizer.safetensors").write_bytes(b"")
        damaged(path, "optimizer.safetensors", 0)

    def test_a_missing_file_is_damage(self, path):
        (path / "model.safetensors").unlink()
        damaged(path, "model.safetensors", os.strerror(errno.ENOENT))

    def test_a_missing_manifest_is_damage(self, path):
        (path / MANIFEST).unlink()
        damaged(path, MANIFEST, os.strerror(errno.ENOENT))

    @pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b"{}", b'{"schema": 1}', b"\xff\xfe", b"\0" * 400])
    def test_a_manifest_that_is_none_is_damage(self, path, data):
        (path / MANIFEST).write_bytes(data)
        damaged(path, MANIFEST)

    def test_any_flipped_bit_of_the_manifest_is_damage(self, path):
        manifest = path / MANIFEST
        for place in range(0, 8 * manifest.stat().st_size, 7):  # every byte, and each of its bits in turn
            flip_bit(manifest, place)
            with pytest.raises(DamagedError):
                read_header(path)
            flip_bit(manifest, place)
        assert read_header(path).position.step == 5

    def test_another_schema_is_refused_by_number(self, path):
        manifest = json.loads((path / MANIFEST).read_text())
        (path / MANIFEST).write_text(json.dumps(manifest | {"schema": 99}))
        damaged(path, "schema", 99, 1, 2)

    @pytest.mark.parametrize("accuracy", [None, 0.5])
    @pytest.mark.parametrize("scaler", [{}, {"scale": 65536.0, "_growth_tracker": 7}])
    def test_schema_1_is_read_too(self, path, accuracy, scaler):
        as_schema_1(path, accuracy=accuracy, scaler=scaler)
        found = read_checkpoint(path)
        metric = None if accuracy is None else Metric("accuracy", 0.5)
        position = Position(step=5, epoch=1, samples=64, elapsed=2.5)
        assert found.header[:3] == (position, metric, {"seed": 0, "identity": {"train.seed": 0}})
        assert {name: join({}, tree) for name, tree in found.header.trees.items()} == (
            {"scaler": scaler} if scaler else {}
        )
        require_equal(found, Checkpoint(checkpoint_of().tensors, found.header))

    def test_what_a_save_of_this_process_left_behind_is_in_nobodys_way(self, path):
        left = path.with_name(f".{path.name}.new.{os.getpid()}")
        left.mkdir()
        (left / "model.safetensors").write_text("half of it")
        write(path, checkpoint_of())
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_a_save_that_fails_leaves_nothing(self, path):
        with file_size_limit(100), pytest.raises(Exception, match=r"os error 27|File too large"):
            write(path.with_name("step_00000006"), checkpoint_of(6))
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_every_file_is_on_the_disk_before_the_checkpoint_has_its_name(self, path, monkeypatch):
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
        assert path.parent.name in after, "and its name after that"

    def test_the_same_step_saved_again_replaces_it(self, path):
        other = Checkpoint({"model": {"w": torch.ones(3)}}, Header(Position(step=5)))
        write(path, other)
        require_equal(read_checkpoint(path), other)
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_where_it_cannot_take_the_place_the_old_one_keeps_it(self, path, monkeypatch):
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

    def test_it_is_there_before_the_old_one_is_removed(self, path, monkeypatch):
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
        return sorted(entry.name for entry in store.path.iterdir())

    def test_an_empty_store_has_none(self, store):
        assert store.newest() is None

    def test_the_newest_is_found_and_pointed_to_by_a_relative_link(self, store):
        for step in (3, 20, 100):
            store.add(checkpoint_of(step))
        require_equal(store.newest(), checkpoint_of(100))
        assert (store.path / "latest").readlink() == Path("step_00000100")

    def test_the_newest_and_the_best_are_kept(self, store):
        for step, accuracy in [(1, 0.5), (2, 0.9), (3, None), (4, 0.9), (5, 0.8), (6, None)]:
            store.add(checkpoint_of(step, accuracy=accuracy))
        assert self.names(store) == ["best", "latest", "step_00000002", "step_00000005", "step_00000006"]
        assert (store.path / "best").readlink() == Path("step_00000002")
        assert (store.path / "latest").readlink() == Path("step_00000006")

    def test_a_better_one_takes_over_and_the_former_best_may_go(self, store):
        for step, accuracy in [(1, 0.9), (2, 0.1), (3, 0.2), (4, 0.95)]:
            store.add(checkpoint_of(step, accuracy=accuracy))
        assert self.names(store) == ["best", "latest", "step_00000003", "step_00000004"]
        assert (store.path / "best").readlink() == Path("step_00000004")

    def test_nothing_is_touched_where_the_folder_is_no_longer_ours(self, tmp_path):
        def lost():
            raise LostFolderError(lock="lock")

        (tmp_path / ".step_00000001.new.7").mkdir()
        with pytest.raises(LostFolderError):
            CheckpointStore(tmp_path, keep=2, check_owner=lost).add(checkpoint_of(1))
        assert [entry.name for entry in tmp_path.iterdir()] == [".step_00000001.new.7"]

    def test_a_metric_that_is_no_number_is_never_the_best(self, store):
        for step, accuracy in [(1, float("nan")), (2, 0.1), (3, float("inf"))]:
            store.add(checkpoint_of(step, accuracy=accuracy))
        assert (store.path / "best").readlink() == Path("step_00000002")

    def test_a_damaged_one_is_passed_over_in_words(self, store, caplog):
        store.add(checkpoint_of(1))
        store.add(checkpoint_of(2))
        flip_bit(store.path / "step_00000002" / "model.safetensors", 99)
        with caplog.at_level(logging.WARNING):
            require_equal(store.newest(), checkpoint_of(1))
        assert_warning(caplog.text, "damaged-checkpoint", store.path / "step_00000002", "sha256", "model.safetensors")

    def test_where_all_are_damaged_nothing_is_started_anew_by_itself(self, store):
        for step in (1, 2):
            store.add(checkpoint_of(step))
            (store.path / f"step_{step:08d}" / MANIFEST).unlink()
        with refused("damaged-checkpoint", 2, store.path, code=78):
            store.newest()

    def test_after_falling_back_the_damaged_ones_are_kept_apart_and_count_no_more(self, store, caplog):
        for step in (1, 8, 9):
            store.add(checkpoint_of(step, accuracy=step / 10))
        for step in (8, 9):
            (store.path / f"step_{step:08d}" / "model.safetensors").unlink()
        store.add(checkpoint_of(1))
        store.set_aside_after(1)
        assert_warning(caplog.text, "checkpoint-set-aside", store.path / "step_00000009", "step_00000009.set-aside.1")
        assert (store.path / "latest").readlink() == Path("step_00000001")
        assert not (store.path / "best").is_symlink(), "none that is left was evaluated"
        assert not store.is_newest(store.path / "step_00000009.set-aside.1")
        for step in (2, 3, 9):
            store.add(checkpoint_of(step, accuracy=step / 100))
        assert [name for name in self.names(store) if "set-aside" not in name] == [
            *("best", "latest", "step_00000003", "step_00000009")
        ]
        assert len([name for name in self.names(store) if "set-aside" in name]) == 2
        store.set_aside_after(3)
        assert "step_00000009.set-aside.2" in self.names(store)
        store.add(checkpoint_of(9, accuracy=0.5))
        assert (store.path / "best").readlink() == Path("step_00000009")
        assert store.is_newest(store.path / "step_00000009")

    def test_where_nothing_lies_beyond_nothing_is_set_aside(self, store):
        store.add(checkpoint_of(4))
        store.set_aside_after(4)
        assert self.names(store) == ["latest", "step_00000004"]

    def test_an_attempt_killed_before_it_set_the_links_leaves_that_to_the_next(self, store):
        for step in (4, 8):
            store.add(checkpoint_of(step, accuracy=step / 10))
        for link in ("latest", "best"):
            (store.path / link).unlink()
            (store.path / link).symlink_to("step_00000004")
        store.set_aside_after(8)
        assert {(store.path / link).readlink() for link in ("latest", "best")} == {Path("step_00000008")}

    @pytest.mark.parametrize("broken", ["_read_manifest", "load_file", "_sha256"])
    def test_a_disk_that_does_not_answer_is_no_damage(self, store, monkeypatch, broken):
        store.add(checkpoint_of(1))
        store.add(checkpoint_of(2))

        def stale(path, *_):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))

        with monkeypatch.context() as patch:
            patch.setattr(f"slipway.checkpoint.folder.{broken}", stale)
            with pytest.raises(OSError, match="Stale file handle"):
                store.newest()
        require_equal(store.newest(), checkpoint_of(2))

    def test_an_old_one_that_cannot_be_removed_is_reported_and_later_ones_are_saved(self, store, monkeypatch, caplog):
        rmtree = shutil.rmtree

        def failing(path, *arguments, **options):
            if ".step_00000001.discarded" in str(path):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            rmtree(path, *arguments, **options)

        monkeypatch.setattr(shutil, "rmtree", failing)
        for step in range(1, 6):
            store.add(checkpoint_of(step))
        require_equal(store.newest(), checkpoint_of(5))
        assert [name for name in self.names(store) if name.startswith("step_")] == ["step_00000004", "step_00000005"]
        assert_warning(caplog.text, "cannot-remove", ".step_00000001.discarded", os.strerror(errno.EACCES))

    @pytest.mark.parametrize("pointer", ["missing", "dangling"])
    def test_without_its_pointer_the_largest_step_is_the_newest(self, store, pointer):
        store.add(checkpoint_of(1))
        store.add(checkpoint_of(2))
        (store.path / "latest").unlink()
        if pointer == "dangling":
            (store.path / "latest").symlink_to("step_00000077")
        require_equal(store.newest(), checkpoint_of(2))

    def test_the_best_one_saved_again_without_an_evaluation_is_best_no_more(self, store):
        for step, accuracy in [(1, 0.5), (2, 0.9), (2, None)]:
            store.add(checkpoint_of(step, accuracy=accuracy))
        assert (store.path / "best").readlink() == Path("step_00000001")
        store.add(checkpoint_of(1))
        assert not (store.path / "best").is_symlink()
        for step, accuracy in [(3, 0.2), (4, 0.1), (5, 0.1)]:
            store.add(checkpoint_of(step, accuracy=accuracy))
        assert self.names(store) == ["best", "latest", "step_00000003", "step_00000004", "step_00000005"]

    def test_a_best_one_that_is_damaged_is_replaced(self, store):
        store.add(checkpoint_of(1, accuracy=0.9))
        (store.path / "step_00000001" / MANIFEST).write_text("")
        store.add(checkpoint_of(2, accuracy=0.1))
        assert (store.path / "best").readlink() == Path("step_00000002")

    def test_a_replacement_that_was_killed_half_way_is_undone(self, store):
        store.add(checkpoint_of(1))
        path = store.path / "step_00000001"
        shutil.copytree(path, store.path / ".step_00000001.new.4711")
        path.rename(store.path / ".step_00000001.replaced.4711")
        require_equal(find_checkpoint("auto", store), checkpoint_of(1))
        store.add(checkpoint_of(2))
        assert self.names(store) == ["latest", "step_00000001", "step_00000002"]

    def test_what_a_killed_save_left_is_never_used_and_removed_by_the_next(self, store):
        store.add(checkpoint_of(1))
        shutil.copytree(store.path / "step_00000001", store.path / ".step_00000002.new.4711")
        shutil.copytree(store.path / "step_00000001", store.path / ".step_00000000.discarded.4711")
        require_equal(store.newest(), checkpoint_of(1))
        store.add(checkpoint_of(3))
        assert self.names(store) == ["latest", "step_00000001", "step_00000003"]


class TestFinding:
    @pytest.fixture
    def run(self, tmp_path):
        """Return another run's folder, with checkpoints of steps 1 and 2."""
        store = CheckpointStore(tmp_path / "other" / "checkpoints", keep=2)
        store.path.mkdir(parents=True)
        store.add(checkpoint_of(1))
        store.add(checkpoint_of(2))
        return tmp_path / "other"

    @pytest.fixture
    def own(self, tmp_path):
        (tmp_path / "checkpoints").mkdir()
        return CheckpointStore(tmp_path / "checkpoints", keep=2)

    def test_nothing_is_resumed_unless_asked(self, own):
        own.add(checkpoint_of(7))
        assert find_checkpoint("", own) is None

    def test_auto_takes_the_newest_of_the_own_run_or_starts_anew(self, own):
        assert find_checkpoint("auto", own) is None
        own.add(checkpoint_of(7))
        require_equal(find_checkpoint("auto", own), checkpoint_of(7))

    def test_a_path_names_a_checkpoint_or_a_run(self, own, run):
        require_equal(find_checkpoint(str(run / "checkpoints" / "step_00000001"), own), checkpoint_of(1))
        require_equal(find_checkpoint(str(run / "checkpoints" / "latest"), own), checkpoint_of(2))
        require_equal(find_checkpoint(str(run), own), checkpoint_of(2))

    def test_a_named_one_that_is_damaged_is_refused_and_no_other_taken(self, own, run):
        path = run / "checkpoints" / "step_00000002"
        (path / "model.safetensors").write_bytes(b"")
        with refused("damaged-checkpoint", path, "model.safetensors", code=78):
            find_checkpoint(str(path), own)

    def test_a_path_without_any_is_refused(self, own, tmp_path):
        with refused("no-checkpoint", tmp_path / "gone", MANIFEST, code=78):
            find_checkpoint(str(tmp_path / "gone"), own)

    def test_checkpoints_of_its_own_go_before_those_of_another_run(self, own, run):
        own.add(checkpoint_of(9))
        require_equal(find_checkpoint(str(run), own), checkpoint_of(9))
