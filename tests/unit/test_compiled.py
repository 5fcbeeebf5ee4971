"""What torch.compile has made is kept in the run folder, and used by its owner alone."""

import logging
import os
import time
import zipfile

import pytest

from slipway.compiled import CACHE, CompiledCode, kind_of_node
from slipway.environment import read_environment
from slipway.world import World

ROOT_RANK = World()


class Node:
    """A node with a cache of its own, and the run folder that all share."""

    def __init__(self, run, name):
        self.run, self.cache = run, run.parent / name
        self.archive = run / "compiled" / f"{kind_of_node()}.zip"

    def begin(self, world=ROOT_RANK):
        """Begin an attempt."""
        return CompiledCode(self.run, read_environment({CACHE: str(self.cache)}), world)

    def compile(self, name, age=10):
        """Write a file into the cache, last changed ``age`` seconds ago."""
        path = self.cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"code of {name}")
        os.utime(path, (time.time() - age,) * 2)

    @property
    def kept(self):
        """The names in the archive."""
        with zipfile.ZipFile(self.archive) as archive:
            return sorted(archive.namelist())


@pytest.fixture
def node(tmp_path):
    (tmp_path / "run").mkdir()
    return Node(tmp_path / "run", "first")


@pytest.fixture
def another(node):
    return Node(node.run, "another")


def test_the_next_attempt_begins_with_it(node, another):
    code = node.begin()
    node.compile("ab/kernel.so")
    code.keep()
    another.begin(World(rank=3, size=4, local_rank=1, local_size=2))
    assert not another.cache.exists()  # one rank of each node unpacks
    code = another.begin()
    assert (another.cache / "ab" / "kernel.so").read_text() == "code of ab/kernel.so"
    assert [path.name for path in another.cache.iterdir()] == ["ab"]
    another.compile("cd/more.so")
    code.keep()
    assert another.kept == ["ab/kernel.so", "cd/more.so"]


def test_what_was_there_before_and_what_is_being_written_is_left_out(node):
    node.compile("of/others.so")
    code = node.begin()
    for name in ("locks/a.lock", "ab/.7.8.tmp", "ab/kernel.so"):
        node.compile(name)
    node.compile("cd/growing.so", age=0)
    os.mkfifo(node.cache / "fifo")
    code.keep()
    assert node.kept == ["ab/kernel.so"]
    node.compile("cd/growing.so")
    before = node.archive.stat()
    code.keep()
    assert node.kept == ["ab/kernel.so", "cd/growing.so"]
    assert node.archive.stat().st_ino != before.st_ino


def test_nothing_is_written_where_nothing_was_compiled(node):
    node.begin().keep()
    CompiledCode(node.run, read_environment({}), ROOT_RANK).keep()
    assert not list(node.run.iterdir())


def a_damaged_file(path):
    path.write_bytes(b"PK\3\4 and no archive")


def another_users_file(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ab/kernel.so", "code of somebody else")
    os.chown(path, 12345, -1)


@pytest.mark.parametrize("make", [a_damaged_file, another_users_file, os.mkfifo, os.mkdir])
def test_a_file_that_is_not_ours_or_none_is_not_used(make, node, another, caplog):
    if make is another_users_file and os.geteuid() != 0:
        pytest.skip("needs root")
    node.archive.parent.mkdir()
    make(node.archive)
    code = node.begin()
    assert "compiles anew" in caplog.text
    assert not (node.cache / "ab").exists()
    node.compile("ab/kernel.so")
    code.keep()
    if make is os.mkdir:
        assert "is not kept" in caplog.text
    else:
        another.begin()
        assert (another.cache / "ab" / "kernel.so").read_text() == "code of ab/kernel.so"


def test_an_archive_cannot_write_outside_of_the_cache(node):
    node.archive.parent.mkdir()
    with zipfile.ZipFile(node.archive, "w") as archive:
        archive.writestr("../../outside", "")
        archive.writestr("/absolute", "")
    node.begin()
    assert not (node.run.parent / "outside").exists()
    assert sorted(path.name for path in node.cache.iterdir()) == ["absolute", "outside"]


def test_a_run_folder_that_cannot_be_written_is_only_warned_of(node, caplog):
    (node.run / "compiled").write_text("")
    code = node.begin()
    node.compile("ab/kernel.so")
    with caplog.at_level(logging.WARNING):
        code.keep()
    assert "is not kept for the next attempt" in caplog.text
    assert [path.name for path in node.run.iterdir()] == ["compiled"]
