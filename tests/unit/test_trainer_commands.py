"""The first word of the trainer's command line: a command, or the start of a training command."""

import importlib
import subprocess
import sys

import pytest

from messages import assert_error, refused
from slipway.base.contract import EXIT_CONFIG, EXIT_USAGE, VERSION
from trainer.config import arguments
from trainer.config.commands import COMMANDS, find_command


def trainer(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "trainer", *words], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_found_by_name(name):
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
        ["mine"],
    ],
    ids=" ".join,
)
def test_arguments_without_command_start_training(argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("evaluate", "mine"):  # files without a suffix
        (tmp_path / name).touch()
    assert find_command(argv) is None


@pytest.mark.parametrize(("word", "nearest"), [("evalute", ["'evaluate'"]), ("exprot", ["'export'"]), ("qqq", [])])
def test_unknown_command_is_refused_and_nearest_suggested(word, nearest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused("unknown-command", f"{word!r}", *nearest, *COMMANDS, code=EXIT_USAGE) as error:
        find_command([word, "runs/mine"])
    assert str(error.value).count("'") == 2 + 2 * len(nearest)


def test_config_file_named_like_command_is_read_by_path(tmp_path):
    (tmp_path / "evaluate").write_text("[train]\nepochs = 0\n")
    done = trainer("./evaluate", cwd=tmp_path)
    assert done.returncode == EXIT_CONFIG
    assert_error(done.stderr, "bad-value", "evaluate: ", "train.epochs")
    done = trainer("evaluate", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (EXIT_USAGE, 1)
    assert_error(done.stderr, "missing-argument", "trainer evaluate RUN [flags]")


def test_trainer_help_lists_commands():
    done = trainer("--help")
    assert done.returncode == 0
    for name, row in COMMANDS.items():
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"  trainer {name} "))
        assert row.usage in line
        assert row.summary in line
    assert "./NAME" in done.stdout


@pytest.mark.parametrize(("name", "own"), [("evaluate", "--best"), ("export", "--best"), ("make-data", "--per-class")])
def test_each_command_prints_its_own_help(name, own, capsys):
    for flag in ("--help", "--version"):
        with pytest.raises(SystemExit, match=r"^0$"):
            find_command([name])([flag])
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"usage: trainer {name} {COMMANDS[name].usage}\n")
    assert own in said.out
    assert ("RUN" in said.out.partition("\n")[2]) == ("RUN" in COMMANDS[name].usage)
    assert "--epochs" not in said.out
    assert said.out.endswith(f"\nslipway {VERSION}\n")


@pytest.mark.parametrize(
    ("words", "slug", "values"),
    [
        ([], "missing-argument", ["export: RUN and FILE "]),
        (["run"], "missing-argument", ["export: FILE "]),
        (["run", "file.pt", "more"], "unexpected-argument", ["'more'", "RUN", "FILE"]),
        (["run", "file.pt", "--bset"], "unknown-flag", ["--bset", "--best"]),
        (["run", "file.pt", "--epochs", "3"], "unknown-flag", ["--epochs"]),
        (["run", "file.pt", "--data-dir"], "bad-flag-value", ["--data-dir"]),
        (["run", "--print-config"], "flag-conflict", ["--print-config"]),
    ],
)
def test_invalid_command_arguments_are_usage_errors(words, slug, values):
    with refused(slug, "export: ", *values, code=EXIT_USAGE):
        arguments.read("export", words, arguments.SOURCE, {"data": ["data_dir"]})


def test_only_given_flags_override_settings_of_run():
    own, taken = arguments.SOURCE, {"data": ["data_dir", "workers"], "launch": ["device"]}
    found = arguments.read("evaluate", ["runs/mine", "--workers", "0", "--device=cpu"], own, taken)
    assert (found.names, found.overrides) == (["runs/mine"], {"data": {"workers": 0}})
    assert found.own == {"best": False, "average": True, "config": ""}
    assert found.launch.device == "cpu"
