"""User-defined models and data sets: what works, and one-line errors for the rest."""

import subprocess
import sys
import textwrap

import pytest
import torch

from messages import refused
from trainer.config.cli import parse
from trainer.config.settings import DataConfig, ModelConfig
from trainer.data.sets import open_data
from trainer.model import build_model

MINE = """
import os
import torch
from dataclasses import replace
from torch import nn
from trainer.data.base import in_memory_splits

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.LazyLinear(classes))

def two(config):
    images = torch.arange(8 * 6 * 6, dtype=torch.uint8).reshape(8, 1, 6, 6)
    part = images, torch.arange(8) % 2
    return in_memory_splits(part, part, classes=("even", "odd"), padding=config.crop_padding, flip=config.flip)

def wide(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(36, classes + 1))
def none(*arguments): return None
def fails(*arguments): raise ValueError("two\\nlines")
def deep(shape, classes): return nn.Linear(7, classes)
def pair(shape, classes):
    class Pair(nn.Module):
        def forward(self, images): return images, images
    return Pair()
def floats(config):
    part = torch.zeros(4, 1, 6, 6).byte(), torch.zeros(4).long()
    both = in_memory_splits(part, part, classes=("a",), padding=0, flip=False)
    return both._replace(validation=replace(both.validation, images=torch.zeros(4, 1, 6, 6)))
def vectors(config):
    part = torch.rand(4, 32), torch.zeros(4).long()
    return in_memory_splits(part, part, classes=("a",), padding=0, flip=False)
def labels(config):
    part = torch.zeros(4, 1, 6, 6).byte(), torch.tensor([0, 1, 2, 3])
    return in_memory_splits(part, part, classes=("a", "b"), padding=0, flip=False)
def short(config):
    part = torch.zeros(4, 1, 6, 6).byte(), torch.tensor([0, 1])
    return in_memory_splits(part, part, classes=("a", "b"), padding=0, flip=False)
def latin(config):
    part = torch.zeros(4, 1, 6, 6).byte(), torch.zeros(4).long()
    return in_memory_splits(part, part, classes=(os.fsdecode(b"caf\\xe9"),), padding=0, flip=False)
def plain(config): return ([1], [2])
number = 7
"""
SHAPE = (1, 6, 6)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the trainer's working directory, with a module of the user."""
    (tmp_path / "mine_own.py").write_text(MINE)
    (tmp_path / "broken_own.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "wrong_own.py").write_text("def (\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine_own", "broken_own", "wrong_own"):
        sys.modules.pop(name, None)
    return tmp_path


@pytest.mark.parametrize("name", ["net", "Net"])
def test_user_model_is_built_from_factory_or_class(name):
    model = build_model(ModelConfig(arch=f"mine_own:{name}"), shape=SHAPE, classes=3)
    assert model.training
    assert model(torch.zeros(5, *SHAPE)).shape == (5, 3)


def test_user_dataset_is_opened():
    train, test = open_data(DataConfig(dataset="mine_own:two", flip=True))
    assert (len(train), train.shape, train.classes, train.draws, test.draws) == (8, SHAPE, ("even", "odd"), 3, 0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mine_own:nett", ["mine_own.py", "'nett'", "'net'"]),
        ("mine_own:number", ["mine_own.py", "'number'"]),
        ("gone_own:net", ["'gone_own'", " /"]),
        ("mine_own.sub:net", ["'mine_own.sub'"]),
        ("broken_own:net", [" broken_own ", "ModuleNotFoundError: ", "'nothing_of_this_name'"]),
        ("wrong_own:net", [" wrong_own ", "SyntaxError: "]),
        ("mine_own:fails", ["ValueError: two lines"]),
        ("mine_own:none", ["NoneType", "torch.nn.Module"]),
        ("mine_own:wide", ["[2, 4]", "[2, 3]"]),
        ("mine_own:deep", ["[1, 6, 6]", "RuntimeError: "]),
        ("mine_own:pair", ["tuple", "[2, 3]"]),
        (":net", ["package.module:factory"]),
        ("mine_own:", ["package.module:factory"]),
        ("..mine_own:net", ["package.module:factory"]),
        ("a..b:net", ["'a'"]),
    ],
)
def test_invalid_user_model_gives_one_line_error(name, values):
    with refused("bad-plugin", *values) as error:
        build_model(ModelConfig(arch=name), shape=SHAPE, classes=3)
    assert str(error.value).startswith(f"--arch {name}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("plain", ["train", "AttributeError", "'labels'"]),
        ("none", ["NoneType", "Splits(train, validation)"]),
        ("floats", ["validation", "fetch([0], None)", "uint8 [1, 1, 6, 6]", "torch.float32"]),
        ("vectors", ["uint8", "[n, c,", "torch.float32 [4, 32]", "docs/howto/session.md"]),
        ("labels", ["train", "labels", " 0 ", " 1,", " 2 "]),
        ("short", ["train", "labels", "int64", "[4]"]),
        ("latin", ["train", r"'caf\udce9'", "UTF-8"]),
        ("fails", ["ValueError: two lines"]),
    ],
)
def test_invalid_user_dataset_gives_one_line_error(name, values):
    with refused("bad-plugin", *values) as error:
        open_data(DataConfig(dataset=f"mine_own:{name}"))
    assert "\n" not in str(error.value)


def test_command_line_accepts_plugin_names_and_refuses_invalid_ones():
    assert parse(["--dataset", "a.b:c", "--arch", "a:b"]).data.dataset == "a.b:c"
    for wrong in ("digit", "a:b:c", ":b", "a:", "a b:c"):
        with refused("bad-flag-value", "--dataset", "digits", "synthetic", "package.module:factory"):
            parse(["--dataset", wrong])


def test_unknown_dataset_in_config_file_is_refused(folder):
    (folder / "c.toml").write_text('[data]\ndataset = "digit"\n')
    with refused("bad-value", "data.dataset: ", "digits", "synthetic", "package.module:factory"):
        parse([str(folder / "c.toml")])


def test_user_modules_do_not_shadow_installed_modules(folder):
    for name in ("trainer", "torch", "random", "queue"):
        (folder / f"{name}.py").write_text("raise SystemExit('hidden')\n")
    code = """
        from trainer.config.plugin import find_factory
        import random, queue
        print(find_factory("--arch", "mine_own:net").__name__)
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "net\n"), done.stderr
