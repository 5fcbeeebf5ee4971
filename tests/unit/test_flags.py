"""The trainer's flags, checked without the trainer: what it takes passes, what it refuses is refused in one line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from jobgen import flags as flags_module
from jobgen.errors import JobgenError
from jobgen.flags import ArgumentError, load_schema, read_arguments
from trainer.cli import parse
from trainer.config import BackendName
from trainer.errors import UsageError
from trainer.schema import schema


def argument_error(arguments, schema):
    """Return the first error in ``arguments``; "" if there is none."""
    try:
        read_arguments(arguments, schema)
    except ArgumentError as error:
        return str(error)
    return ""


*_FIRST, _LAST = get_args(BackendName)
BACKENDS = f"{', '.join(_FIRST)} or {_LAST}"

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

REFUSED = {
    ("--learning-rate", "0.1"): "unknown flag --learning-rate; did you mean --lr?",
    ("--learning_rate=0.1",): "unknown flag --learning_rate; did you mean --lr?",
    ("--epoch", "3"): "unknown flag --epoch; did you mean --epochs?",
    ("--batchsize", "3"): "unknown flag --batchsize; did you mean --batch-size?",
    ("--no-figure",): "unknown flag --no-figure; did you mean --no-figures?",
    ("--mixed-precision", "bf16"): "unknown flag --mixed-precision; did you mean --amp?",
    ("--xyzzy",): "unknown flag --xyzzy; --help lists all",
    ("-lr", "1"): "unknown flag -lr; did you mean --lr?",
    ("--no-lr",): "unknown flag --no-lr; did you mean --no-flip?",
    ("--Lr", "1"): "unknown flag --Lr; did you mean --lr?",
    ("--brand\nnew",): "unknown flag '--brand\\nnew'; --help lists all",
    ("--dry-run=yes",): "--dry-run takes no value; --no-dry-run is its opposite",
    ("--channels-last=yes",): "--channels-last takes no value but auto; --no-channels-last is its opposite",
    ("--no-channels-last=auto",): "--no-channels-last takes no value; --channels-last is its opposite",
    ("a.toml", "--channels-last", "no"): "unexpected argument 'no': no flag takes it, and it is no .toml file",
    ("--lr",): "--lr lacks a value: a number, above 0",
    ("--lr", "--flip"): "--lr lacks a value: a number, above 0",
    ("--lr", "fast"): "--lr is 'fast': it must be a number, above 0",
    ("--lr", "0"): "--lr is '0': it must be a number, above 0",
    ("--lr", "nan"): "--lr is 'nan': it must be a number, above 0",
    ("--lr=-inf",): "--lr is '-inf': it must be a number, above 0",
    ("--epochs", "3.0"): "--epochs is '3.0': it must be a whole number, at least 1",
    ("--epochs", "0"): "--epochs is '0': it must be a whole number, at least 1",
    ("--seed", "4294967296"): "--seed is '4294967296': it must be a whole number, at least 0 and below 4294967296",
    ("--seed", "9" * 400): f"--seed is '{'9' * 400}': it must be a whole number, at least 0 and below 4294967296",
    ("--optimizer", "adamm"): "--optimizer is 'adamm': it must be sgd, adadelta, adam or adamw; did you mean 'adam'?",
    ("--backend", "DDP"): f"--backend is 'DDP': it must be {BACKENDS}",
    ("--nproc-per-node", "all"): "--nproc-per-node is 'all': it must be a whole number, at least 0, or auto",
    ("--nproc-per-node", "-1"): "--nproc-per-node is '-1': it must be a whole number, at least 0, or auto",
    ("--synthetic-shape", "1", "2"): "--synthetic-shape lacks a value: 3 values, each a whole number, at least 1",
    ("--synthetic-shape", "1", "2", "x"): "--synthetic-shape is 'x': it must be a whole number, at least 1",
    ("a.toml", "--flip", "3"): "unexpected argument '3': no flag takes it, and it is no .toml file",
    ("a.toml", "--", "--lr"): "unexpected argument '--lr': no flag takes it, and it is no .toml file",
}


def test_the_committed_schema_is_what_the_configuration_gives():
    assert json.loads(COMMITTED.read_text(encoding="utf-8")) == schema(), (
        "make it again: python -m trainer.schema > configs/schema.json"
    )


def test_the_command_prints_the_committed_file():
    words = [sys.executable, "-m", "trainer.schema"]
    assert subprocess.check_output(words, text=True) == COMMITTED.read_text(encoding="utf-8")


def test_a_key_has_all_that_a_reader_needs():
    train = schema()["properties"]["train"]
    assert train["properties"]["batch_size"] == {
        "flag": "--batch-size",
        "type": "integer",
        "minimum": 1,
        "default": 64,
        "description": "Samples of one optimiser step over all ranks and micro-steps.",
    }
    assert train["properties"]["max_steps"]["minimum"] == train["properties"]["max_steps"]["default"] == 0
    assert schema()["properties"]["launch"]["properties"]["dry_run"]["no_flag"] == "--no-dry-run"
    assert train["properties"]["amp"]["enum"] == ["auto", "none", "bf16", "fp16"]


def test_every_key_has_flag_type_default_and_description():
    for section in schema()["properties"].values():
        for name, key in section["properties"].items():
            assert {"flag", "default", "description"} <= key.keys(), name
            assert all("type" in choice for choice in key.get("anyOf", [key])), name


@pytest.mark.parametrize("arguments", TAKEN, ids=" ".join)
def test_what_the_trainer_takes_passes(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("base.toml", "overlay.toml"):
        Path(name).touch()
    assert argument_error(arguments, schema()) == ""
    parse(arguments)


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_what_it_refuses_is_refused_in_one_line(arguments):
    assert argument_error(arguments, schema()) == REFUSED[arguments]
    with pytest.raises(UsageError):
        parse(list(arguments))


@pytest.mark.parametrize("flag", ["-h", "--help", "--version"])
def test_who_asks_for_a_text_gets_it_whatever_else_is_said(flag):
    assert argument_error(["--learning-rate", flag], schema()) == ""


def test_the_schema_of_the_clone_in_which_one_stands_goes_first(tmp_path, monkeypatch):
    mine = schema() | {"description": "mine"}
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "schema.json").write_text(json.dumps(mine))
    monkeypatch.chdir(tmp_path)
    assert load_schema() == mine


@pytest.mark.parametrize("content", [None, "", "[]", '{"title": "of another project"}'])
def test_otherwise_it_is_that_of_the_distribution(tmp_path, monkeypatch, content):
    if content is not None:
        (tmp_path / "configs").mkdir()
        (tmp_path / "configs" / "schema.json").write_text(content)
    monkeypatch.chdir(tmp_path)
    assert load_schema() == schema()


def test_without_any_there_is_a_clear_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flags_module, "__file__", str(tmp_path / "a" / "jobgen" / "flags.py"))
    with pytest.raises(JobgenError, match=r"no configs/schema.json in this folder"):
        load_schema()
