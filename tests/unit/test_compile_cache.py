"""The torch.compile cache of a job: kept in the run folder, and used only by its owner."""

import os
import time
import zipfile

import pytest

from messages import assert_warning, slugs
from slipway.base.environment import World, read_environment
from slipway.checkpoint import compile_cache as compiled
from slipway.checkpoint.compile_cache import CompiledCode, node_fingerprint


class Node:
    """A node with its own cache, and the run folder that all nodes share."""

    def __init__(self, run, name):
        self.run, self.cache = run, run.parent / name
        self.archive = run / "compiled" / f"{node_fingerprint()}.zip"

    def begin(self, *, attempt="1", **world):
        """Begin an attempt."""
        environment = read_environment({"TRAINER_ATTEMPT": attempt, "TORCHINDUCTOR_CACHE_DIR": str(self.cache)})
        code = CompiledCode(self.run, environment)
        code.unpack(World(**world))
        return code

    def compile(self, name, age=10, *, where=None):
        """Write a file into the cache, modified ``age`` seconds ago."""
        path = (where or self.cache) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"code of {name}" * 100)
        os.utime(path, (time.time() - age,) * 2)

    def pack(self, name):
        """Write an archive with one file."""
        self.archive.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(self.archive, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, f"code of {name}" * 100)

    @property
    def kept(self):
        """Return the names in the archive, after checking all of its members."""
        with zipfile.ZipFile(self.archive) as archive:
            assert archive.testzip() is None
            return sorted(archive.namelist())


@pytest.fixture
def node(tmp_path):
    (tmp_path / "run").mkdir()
    return Node(tmp_path / "run", "first")


@pytest.fixture
def another(node):
    return Node(node.run, "another")


def test_next_attempt_reuses_compiled_code(node, another):
    code = node.begin()
    node.compile("ab/kernel.so")
    code.save()
    another.begin(rank=3, size=4, local_rank=1, local_size=2)
    assert not another.cache.exists()  # one rank of each node unpacks
    code = another.begin()
    assert (another.cache / "ab" / "kernel.so").read_text().startswith("code of ab/kernel.so")
    assert [path.name for path in another.cache.iterdir()] == ["ab"]
    another.compile("cd/more.so")
    code.save()
    assert another.kept == ["ab/kernel.so", "cd/more.so"]
    assert another.archive.stat().st_mode & 0o777 == 0o600


def test_restarted_attempt_saves_code_compiled_by_first(node):
    node.begin()
    node.compile("ab/kernel.so")
    node.begin(attempt="2").save()
    assert node.kept == ["ab/kernel.so"]


def test_locks_and_unfinished_files_are_not_archived(node):
    code = node.begin()
    for name in ("locks/a.lock", "ab/.7.8.tmp", "ab/kernel.so"):
        node.compile(name)
    node.compile("cd/growing.so", age=0)
    os.mkfifo(node.cache / "fifo")
    code.save()
    assert node.kept == ["ab/kernel.so"]
    code.save(settled=0)
    assert node.kept == ["ab/kernel.so", "cd/growing.so"]
    before = node.archive.stat()
    code.save(settled=0)
    assert node.archive.stat() == before  # not written again


def test_files_with_unicode_names_and_old_times_are_archived(node, caplog):
    code = node.begin()
    node.compile("ab/kernel.so", age=time.time())  # 1970
    node.compile("ab/größe.so")
    code.save()
    assert not caplog.text
    assert node.kept == ["ab/größe.so", "ab/kernel.so"]


def test_nothing_is_written_outside_job_or_if_nothing_was_compiled(node):
    node.begin().save()
    node.compile("ab/kernel.so")
    node.begin(attempt="").save()
    CompiledCode(node.run, read_environment({"TRAINER_ATTEMPT": "1"})).save()
    assert not list(node.run.iterdir())


def flipped_bits(node):
    node.pack("ab/old.so")
    content = bytearray(node.archive.read_bytes())
    content[45:50] = b"\xff" * 5
    node.archive.write_bytes(content)


def of_another_user(node):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    node.pack("ab/old.so")
    os.chown(node.archive, 12345, -1)


def writable_by_others(node):
    node.pack("ab/old.so")
    node.archive.chmod(0o664)


@pytest.mark.parametrize(
    "make",
    [
        lambda node: node.archive.write_bytes(b"PK\3\4 and no archive"),
        flipped_bits,
        of_another_user,
        writable_by_others,
        lambda node: os.mkfifo(node.archive),
        lambda node: node.archive.mkdir(),
    ],
    ids=["no archive", "flipped bits", "of another user", "writable by others", "fifo", "folder"],
)
def test_damaged_or_untrusted_archive_warns_and_is_not_used(make, node, another, caplog):
    node.archive.parent.mkdir()
    make(node)
    code = node.begin()
    assert slugs(caplog.text) == ["compiled-code-lost"]
    assert_warning(caplog.text, "compiled-code-lost", node.archive)
    assert not (node.cache / "ab").exists()
    node.compile("ab/kernel.so")
    code.save()
    if node.archive.is_dir():
        assert slugs(caplog.text) == ["compiled-code-lost"] * 2
    else:
        caplog.clear()
        another.begin()
        assert not caplog.text
        assert [path.name for path in (another.cache / "ab").iterdir()] == ["kernel.so"]


def test_archive_cannot_write_outside_cache(node):
    for name in ("../../outside", "/absolute"):
        node.pack(name)
        node.archive.chmod(0o600)
        node.begin()
    assert not (node.run.parent / "outside").exists()
    assert sorted(path.name for path in node.cache.iterdir()) == ["absolute", "outside"]


def test_failed_save_of_compiled_code_is_retried(node, caplog):
    (node.run / "compiled").write_text("in the way")
    code = node.begin()
    node.compile("ab/kernel.so")
    code.save()
    assert "compiled-code-lost" in slugs(caplog.text)
    (node.run / "compiled").unlink()
    code.save()
    assert node.kept == ["ab/kernel.so"]
    node.archive.unlink()  # by the user
    (node.archive.parent / ".left.zip").write_text("by an attempt that was killed")
    code.save()
    assert node.kept == ["ab/kernel.so"]
    assert len(list(node.archive.parent.iterdir())) == 1


def test_archive_that_would_exceed_size_limit_is_replaced(node, another, monkeypatch):
    code = node.begin()
    node.compile("ab/kernel.so")
    code.save()
    monkeypatch.setattr(compiled, "MOST", node.archive.stat().st_size + 100)
    another.compile("cd/more.so")
    CompiledCode(
        another.run, read_environment({"TRAINER_ATTEMPT": "2", "TORCHINDUCTOR_CACHE_DIR": str(another.cache)})
    ).save()
    assert another.kept == ["cd/more.so"]
