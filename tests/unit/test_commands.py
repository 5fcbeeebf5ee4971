"""The first word of the trainer's command line: a command, or something to train by."""

import importlib
import subprocess
import sys

import pytest

from slipway.layout import EXIT_CONFIG, EXIT_USAGE, VERSION
from trainer import arguments
from trainer.commands import COMMANDS, find_command
from trainer.errors import UsageError


def trainer(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "trainer", *words], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there(name):
    assert find_command([name, "--whatever"]) is importlib.import_module(COMMANDS[name].module).main


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--help"],
        ["--dataset", "evaluate"],
        ["configs/digits.toml", "evaluate"],
        ["./evaluate"],
        ["a.toml", "b.toml"],
        ["gone.toml"],
        ["-"],
    ],
    ids=" ".join,
)
def test_anything_else_trains(argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evaluate").touch()
    assert find_command(argv) is None


def test_a_file_without_a_suffix_is_trained_by(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    assert find_command(["mine"]) is None


@pytest.mark.parametrize(
    ("word", "hint"), [("evalute", "Did you mean 'evaluate'?"), ("exprot", "Did you mean 'export'?"), ("qqq", "file.")]
)
def test_a_word_that_is_neither_is_refused_with_the_nearest_command(word, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="neither a command nor a file") as error:
        find_command([word, "runs/mine"])
    assert hint in str(error.value)
    assert all(name in str(error.value) for name in COMMANDS)


def test_a_file_that_is_called_like_a_command_is_named_by_its_path(tmp_path):
    (tmp_path / "evaluate").write_text("[train]\nepochs = 0\n")
    done = trainer("./evaluate", cwd=tmp_path)
    assert (done.returncode, done.stderr[: len("trainer: evaluate: train")]) == (
        EXIT_CONFIG,
        "trainer: evaluate: train",
    )
    done = trainer("evaluate", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        EXIT_USAGE,
        "trainer: evaluate: RUN missing: trainer evaluate RUN [flags]\n",
    )


def test_the_help_of_the_trainer_lists_the_commands():
    done = trainer("--help")
    assert done.returncode == 0
    for name, row in COMMANDS.items():
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"  trainer {name} "))
        assert row.usage in line
        assert row.summary in line
    assert "write ./NAME for a file" in done.stdout


@pytest.mark.parametrize(("name", "own"), [("evaluate", "--best"), ("export", "--best"), ("make-data", "--per-class")])
def test_each_has_a_help_of_its_own(name, own):
    done = trainer(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: trainer {name} {COMMANDS[name].usage}\n")
    assert own in done.stdout
    assert ("RUN is a run folder" in " ".join(done.stdout.split())) == ("RUN" in COMMANDS[name].usage)
    assert "--epochs" not in done.stdout
    assert trainer(name, "--version").stdout == f"slipway {VERSION}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "export: RUN and FILE missing"),
        (["run"], "export: FILE missing"),
        (["run", "file.pt", "more"], "unexpected argument 'more': the command takes RUN and FILE besides flags"),
        (["run", "file.pt", "--bset"], "unknown flag --bset; did you mean --best?"),
        (["run", "file.pt", "--epochs", "3"], "unknown flag --epochs"),
        (["run", "file.pt", "--data-dir"], "--data-dir lacks a value"),
        (["run", "--print-config"], "--print-config is of training"),
    ],
)
def test_wrong_arguments_are_wrong_usage(words, said):
    with pytest.raises(UsageError) as error:
        arguments.read("export", words, arguments.SOURCE, {"data": ["data_dir"]})
    assert said in str(error.value)


def test_what_is_not_given_stays_as_the_run_has_it():
    own, taken = arguments.SOURCE, {"data": ["data_dir", "workers"], "launch": ["device"]}
    found = arguments.read("evaluate", ["runs/mine", "--workers", "0", "--device=cpu"], own, taken)
    assert (found.names, found.overrides) == (["runs/mine"], {"data": {"workers": 0}})
    assert found.own == {"best": False, "average": True, "config": ""}
    assert found.launch.device == "cpu"
