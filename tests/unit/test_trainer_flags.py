"""The trainer's flags, checked without the trainer: accepted and refused like by the trainer, with one-line errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from jobgen.jobs import trainer_flags
from jobgen.jobs.trainer_flags import load_schema
from messages import refused
from slipway.base.flags import read_arguments
from trainer.config.cli import parse
from trainer.config.errors import ConfigError
from trainer.config.schema import schema
from trainer.config.settings import BackendName

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "configs" / "schema.json"

TAKEN = [
    ["base.toml", "overlay.toml", "--lr", "0.1"],
    ["--lr", "0.1", "--", "base.toml"],
    ["--lr", "0.1"],
    ["--lr=1e-3"],
    ["--batch_size", "3"],
    ["--batch-size_per-rank=3"],
    ["--dry-run"],
    ["--no-dry-run"],
    ["--no_dry_run", "--dry-run"],
    ["--epochs", "1_0"],
    ["--epochs", "+3", "--epochs", " 5"],
    ["--weights", ""],
    ["--weights="],
    ["--output-dir", "-5"],
    ["--output-dir=--foo"],
    ["--output-dir", "-"],
    ["--synthetic-shape", "1", "2", "3"],
    ["--synthetic-shape=1", "2", "3", "--flip"],
    ["--resume", "a b\n'$(c)"],
    ["--seed", "4294967295"],
    ["--nproc-per-node", "0"],
    ["--nproc-per-node", "auto"],
    ["--channels-last", "base.toml"],
    ["--channels-last", "auto", "base.toml"],
    ["--channels-last=auto"],
    ["--no-channels-last", "--channels-last"],
]

UNKNOWN = {
    ("--learning-rate", "0.1"): ["--learning-rate", "--lr"],
    ("--learning_rate=0.1",): ["--learning_rate", "--lr"],
    ("--epoch", "3"): ["--epoch", "--epochs"],
    ("--batchsize", "3"): ["--batchsize", "--batch-size"],
    ("--no-figure",): ["--no-figure", "--no-figures"],
    ("--mixed-precision", "bf16"): ["--mixed-precision", "--amp"],
    ("--xyzzy",): ["--xyzzy", "--help"],
    ("-lr", "1"): [" -lr", "--lr"],
    ("--no-lr",): ["--no-lr", "--no-flip"],
    ("--Lr", "1"): ["--Lr", "--lr"],
    ("--brand\nnew",): ["'--brand\\nnew'", "--help"],
}
UNEXPECTED = {
    ("a.toml", "--channels-last", "no"): ["'no'", ".toml"],
    ("a.toml", "--flip", "3"): ["'3'", ".toml"],
    ("a.toml", "--", "--lr"): ["'--lr'", ".toml"],
}
BAD = {
    ("--dry-run=yes",): ["--dry-run", "--no-dry-run"],
    ("--channels-last=yes",): ["--channels-last", "auto", "--no-channels-last"],
    ("--no-channels-last=auto",): ["--no-channels-last", " --channels-last"],
    ("--lr",): ["--lr", 0],
    ("--lr", "--flip"): ["--lr", 0],
    ("--lr", "fast"): ["--lr", "'fast'"],
    ("--lr", "0"): ["--lr", "'0'"],
    ("--lr", "nan"): ["--lr", "'nan'"],
    ("--lr=-inf",): ["--lr", "'-inf'"],
    ("--epochs", "3.0"): ["--epochs", "'3.0'", 1],
    ("--epochs", "0"): ["--epochs", "'0'", 1],
    ("--seed", "4294967296"): ["--seed", "'4294967296'", " 4294967296"],
    ("--seed", "9" * 400): ["--seed", f"'{'9' * 400}'", 4294967296],
    ("--optimizer", "adamm"): ["--optimizer", "'adamm'", "sgd, adadelta, adam", "adamw", "'adam'"],
    ("--backend", "DDP"): ["--backend", "'DDP'", *get_args(BackendName)],
    ("--nproc-per-node", "all"): ["--nproc-per-node", "'all'", 0, "auto"],
    ("--nproc-per-node", "-1"): ["--nproc-per-node", "'-1'", 0, "auto"],
    ("--data-dir", "caf\udce9"): ["--data-dir", r"'caf\udce9'", "UTF-8"],
    ("--synthetic-shape", "1", "2"): ["--synthetic-shape", 3, 1],
    ("--synthetic-shape", "1", "2", "x"): ["--synthetic-shape", "'x'", 1],
}
REFUSED = [
    (arguments, slug, values)
    for slug, table in (("unknown-flag", UNKNOWN), ("unexpected-argument", UNEXPECTED), ("bad-flag-value", BAD))
    for arguments, values in table.items()
]
"""Arguments, and the slug and the values of their first error."""


def test_schema_command_prints_committed_schema():
    words = [sys.executable, "-m", "trainer.config.schema"]
    assert subprocess.check_output(words, text=True) == COMMITTED.read_text(encoding="utf-8")


def test_schema_key_has_flag_type_limits_and_default():
    train = schema()["properties"]["train"]
    batch_size = dict(train["properties"]["batch_size"])
    assert batch_size.pop("description").endswith(".")
    assert batch_size == {"flag": "--batch-size", "type": "integer", "minimum": 1, "default": 64}
    assert train["properties"]["max_steps"]["minimum"] == train["properties"]["max_steps"]["default"] == 0
    assert schema()["properties"]["launch"]["properties"]["dry_run"]["no_flag"] == "--no-dry-run"
    assert train["properties"]["amp"]["enum"] == ["auto", "none", "bf16", "fp16"]


def test_every_schema_key_has_flag_type_default_and_description():
    for section in schema()["properties"].values():
        for name, key in section["properties"].items():
            assert {"flag", "default", "description"} <= key.keys(), name
            assert all("type" in choice for choice in key.get("anyOf", [key])), name


@pytest.mark.parametrize("arguments", TAKEN, ids=" ".join)
def test_arguments_accepted_by_trainer_are_accepted(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("base.toml", "overlay.toml"):
        Path(name).touch()
    read_arguments(arguments, schema())
    parse(arguments)


@pytest.mark.parametrize(("arguments", "slug", "values"), REFUSED, ids=lambda part: " ".join(map(str, part)))
def test_arguments_refused_by_trainer_are_refused(arguments, slug, values):
    with refused(slug, *values, code=2) as error:
        read_arguments(arguments, schema())
    assert str(error.value).isprintable()
    with pytest.raises(ConfigError) as refusal:
        parse(list(arguments))
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("flag", ["-h", "--help", "--version"])
def test_help_and_version_take_precedence_over_invalid_arguments(flag):
    read_arguments(["--learning-rate", flag], schema())


def test_schema_of_current_clone_takes_precedence(tmp_path, monkeypatch):
    mine = schema() | {"description": "mine"}
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "schema.json").write_text(json.dumps(mine))
    monkeypatch.chdir(tmp_path)
    assert load_schema() == mine


@pytest.mark.parametrize("content", [None, "", "[]", '{"title": "of another project"}'])
def test_packaged_schema_is_used_without_valid_clone_schema(tmp_path, monkeypatch, content):
    if content is not None:
        (tmp_path / "configs").mkdir()
        (tmp_path / "configs" / "schema.json").write_text(content)
    monkeypatch.chdir(tmp_path)
    assert load_schema() == schema()


def test_missing_schema_is_reported_as_incomplete_install(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("PACKAGED", "CHECKOUT"):
        monkeypatch.setattr(trainer_flags, name, tmp_path / "a")
    with refused("incomplete-install", "configs/schema.json"):
        load_schema()
