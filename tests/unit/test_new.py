"""jobgen new: the folder that it creates, the names and folders that it refuses, and the commands that it names."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from jobgen.cli import main, parser
from jobgen.new import FRAMEWORKS
from messages import assert_error

pytestmark = pytest.mark.usefixtures("login_node")
MODULES = {"torch", "slipway"}
"""Modules that need no entry in requirements.txt."""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_created_folder_has_script_and_what_it_requires(framework):
    assert main(["new", "mine", "--for", framework]) == 0
    tree = ast.parse(Path("mine", "train.py").read_text())
    nodes = list(ast.walk(tree))
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    foreign = {name.split(".")[0] for name in names} - {"argparse", "gc", "os"} - MODULES
    required = Path("mine", "requirements.txt")
    assert foreign == {*(required.read_text().split() if required.exists() else [])}
    page = Path("mine", "README.md").read_text()
    assert ("requirements.txt" in page) == required.exists()
    assert "@{" not in page
    assert len(page.splitlines()) <= 25


def test_default_is_ddp(capsys):
    assert main(["new", "mine"]) == 0
    assert capsys.readouterr().out.splitlines() == ["cd mine", "jobgen run train.py"]
    assert "DistributedDataParallel" in Path("mine", "train.py").read_text()


def test_path_of_a_folder_to_create(capsys):
    assert main(["new", "my projects/first"]) == 0
    assert shlex.split(capsys.readouterr().out.splitlines()[0]) == ["cd", "my projects/first"]
    assert Path("my projects", "first", "README.md").read_text().startswith("# first\n")


def test_existing_empty_folder_is_used():
    Path("mine").mkdir()
    assert main(["new", "mine"]) == 0


def test_commands_of_the_readme_are_valid(login_node, monkeypatch):
    main(["new", "mine"])
    monkeypatch.chdir("mine")
    commands = re.findall(r"(?m)^\$ (.*)$", Path("README.md").read_text())
    assert len(commands) == 2
    for command in commands:
        words, _, _ = command.partition(" -- ")
        assert parser().parse_args(shlex.split(words)[1:]).program in {"train.py", "runs/train-4711"}
    Path("slipway.sif").touch()
    first = shlex.split(commands[0])[1:]
    first[2:2] = ["--site", "example", "--set", 'shared=["/"]']
    assert main(first) == 0
    assert (login_node / "101.arguments").read_text().splitlines()[2:] == ["--epochs", "40"]


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_existing_path_is_not_overwritten(kind, capsys):
    if kind == "file":
        Path("mine").write_text("notes")
    elif kind == "link":
        Path("mine").symlink_to(Path("configs").resolve())
    else:
        Path("mine").mkdir()
        Path("mine", "train.py").write_text("mine")
    before = sorted(Path("mine").rglob("*"))
    assert main(["new", "mine"]) == 78
    assert_error(capsys.readouterr().err, "file-exists", "mine")
    assert sorted(Path("mine").rglob("*")) == before


@pytest.mark.parametrize("name", ["", ".", "..", "/", "-", ".hidden", "a b", "é", "a\nb", "a\0b/c", "x" * 65])
def test_invalid_name_is_refused(name, capsys):
    assert main(["new", name]) == 2
    assert_error(capsys.readouterr().err, "bad-flag-value")


def test_unknown_framework_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        main(["new", "mine", "--for", "jax"])
    assert end.value.code == 2
    assert_error(capsys.readouterr().err, "bad-arguments", "jax", *FRAMEWORKS)
    assert not Path("mine").exists()


def test_folder_that_cannot_be_created_is_reported(capsys):
    Path("file").touch()
    assert main(["new", "file/mine"]) == 78
    assert_error(capsys.readouterr().err, "cannot-write", "file/mine")
