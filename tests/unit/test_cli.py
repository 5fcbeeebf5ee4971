"""From a TOML file and flags to one valid Config, and what a person reads where there is none."""

import ast
import dataclasses
import inspect
import subprocess
import sys
import types
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
import tomli_w

from slipway.layout import EXIT_CONFIG, EXIT_USAGE
from trainer import config as config_module
from trainer.cli import load, parse
from trainer.config import Config
from trainer.errors import ConfigError, UsageError

ROOT = Path(__file__).resolve().parents[2]
SECTIONS: dict[str, type] = get_type_hints(Config)
FIELDS = [(section, field.name) for section, cls in SECTIONS.items() for field in dataclasses.fields(cls)]


def another_value(hint, value):
    """Return a valid value of the type ``hint`` that is not ``value``."""
    if get_origin(hint) is Literal:
        return next(choice for choice in reversed(get_args(hint)) if choice != value)
    if get_origin(hint) is tuple:
        return (1, 2, 3)
    return {
        bool: lambda: not value,
        int: lambda: value + 1,
        float: lambda: value / 2 + 0.125,
        str: lambda: 'a "b" \\ é\n[c]',
    }[hint]()


def changed_config():
    """Return a Config in which no field has its default value."""
    sections = {}
    for name, cls in SECTIONS.items():
        defaults, hints = cls(), get_type_hints(cls)
        sections[name] = cls(**{key: another_value(hints[key], getattr(defaults, key)) for key in hints})
    sections["data"] = dataclasses.replace(sections["data"], dataset="mine.own:photos")
    return Config(**sections)


def flags_for(config):
    """Return the flags that spell every field of ``config``."""
    words = []
    for section, name in FIELDS:
        value = getattr(getattr(config, section), name)
        flag = name.replace("_", "-")
        match value:
            case bool():
                words.append(f"--{flag}" if value else f"--no-{flag}")
            case tuple():
                words += [f"--{flag}", *map(str, value)]
            case _:
                words += [f"--{flag}", str(value)]
    return words


def written(folder, text):
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path):
    """Return the words in which ``path`` is refused."""
    with pytest.raises(ConfigError) as error:
        load(path)
    assert error.value.exit_code == EXIT_CONFIG
    text = str(error.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def is_sentence(node):
    """Tell whether ``node`` of a syntax tree is a string on its own that ends in a full stop."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and str(node.value.value)[-1:] == "."


def test_without_file_and_flags_the_defaults_hold():
    assert parse([]) == Config()


def test_every_field_is_a_flag_of_the_same_name():
    assert parse(flags_for(changed_config())) == changed_config()


def test_the_names_that_users_know_are_flags():
    known = "backend epochs batch_size test_batch_size lr gamma seed log_interval dry_run resume output_dir amp"
    known += " grad_accum_steps clip_grad workers"
    assert set(known.split()) <= {name for _, name in FIELDS}


def test_field_names_are_unique_over_all_sections():
    names = [name for _, name in FIELDS]
    assert len(names) == len(set(names))


def test_help_shows_every_flag_and_ends_well(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert [name for _, name in FIELDS if f"--{name.replace('_', '-')}" not in text] == []


def test_every_field_has_a_docstring_that_is_a_sentence():
    undocumented = []
    for cls in ast.parse(inspect.getsource(config_module)).body:
        if isinstance(cls, ast.ClassDef) and cls.name != "Config":
            for field, after in zip(cls.body, [*cls.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and not is_sentence(after):
                    undocumented.append(f"{cls.name}.{ast.unparse(field.target)}")
    assert undocumented == []


def test_a_flag_overrides_the_file_and_the_file_the_default(tmp_path):
    path = written(tmp_path, "[train]\nepochs = 3\nseed = 5\n")
    for argv in ([str(path), "--epochs", "4"], ["--epochs", "4", str(path)]):
        train = parse(argv).train
        assert (train.epochs, train.seed, train.batch_size) == (4, 5, 64)


def test_a_switch_that_the_file_turns_on_is_turned_off_by_its_flag(tmp_path):
    path = written(tmp_path, "[run]\ntensorboard = true\n")
    assert parse([str(path)]).run.tensorboard
    assert not parse([str(path), "--no-tensorboard"]).run.tensorboard


def test_the_saved_configuration_reads_back_as_it_was(tmp_path):
    config = changed_config()
    path = written(tmp_path, tomli_w.dumps(msgspec.to_builtins(config)))
    assert load(path) == config


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_every_committed_configuration_loads(path):
    assert isinstance(load(path), Config)


def test_an_unknown_section_is_refused_with_the_nearest_and_all_others(tmp_path):
    text = refusal(written(tmp_path, "[trian]\nepochs = 3\n"))
    assert "'trian'" in text
    assert "Did you mean 'train'?" in text
    assert "data, model, optim, train, run" in text


def test_an_unknown_key_is_refused_with_the_nearest_and_all_others(tmp_path):
    text = refusal(written(tmp_path, "[train]\nepoch = 3\n"))
    assert "'epoch'" in text
    assert "[train]" in text
    assert "Did you mean 'epochs'?" in text
    assert "grad_accum_steps" in text


def test_an_unknown_choice_is_refused_with_the_nearest_and_all_others(tmp_path):
    text = refusal(written(tmp_path, "[optim]\noptimizer = 'adamm'\n"))
    assert "optim.optimizer: 'adamm' is not one of sgd, adadelta, adam, adamw. Did you mean 'adam'?" in text


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("[train]\nepochs = 'three'", "train.epochs", "`int`"),
        ("[train]\nepochs = 1.5", "train.epochs", "`int`"),
        ("[train]\nepochs = true", "train.epochs", "`int`"),
        ("[train]\nepochs = 0", "train.epochs", ">= 1"),
        ("[train]\nseed = 18446744073709551616", "train.seed", "<= 4294967295"),
        ("[train.epochs]\na = 1", "train.epochs", "`int`"),
        ("[optim]\noptimizer = 3", "optim.optimizer", "`str`"),
        ("[optim]\nlr = 0", "optim.lr", "> 0"),
        ("[optim]\nlr = nan", "optim.lr", "> 0"),
        ("[optim]\nlr = inf", "optim.lr", "<="),
        ("[optim]\nwarmup_epochs = inf", "optim.warmup_epochs", "<="),
        ("[optim]\nmomentum = 1", "optim.momentum", "< 1"),
        ("[data]\nval_fraction = -0.1", "data.val_fraction", "> 0"),
        ("[data]\nsynthetic_shape = [1, 2]", "data.synthetic_shape", "length 3"),
        ("[data]\nsynthetic_shape = [1, 2, 'x']", "data.synthetic_shape[2]", "`int`"),
    ],
    ids=lambda value: value.replace("\n", " ") if "\n" in value else "",
)
def test_a_wrong_type_or_an_impossible_value_is_refused_with_its_key(tmp_path, text, key, reason):
    words = refusal(written(tmp_path, text))
    assert f"{key}: " in words
    assert reason in words


def test_a_key_outside_its_section_is_refused(tmp_path):
    assert "write [train]" in refusal(written(tmp_path, "train = 3\n"))


@pytest.mark.parametrize("data", [b"epochs: 3\n", b"[train", b"\xff\xfe\x00", b"a = 1\na = 2\n"])
def test_a_file_that_is_not_toml_is_refused(tmp_path, data):
    path = tmp_path / "mine.toml"
    path.write_bytes(data)
    assert "not valid TOML" in refusal(path)


def test_a_missing_file_is_refused(tmp_path):
    assert "No such file" in refusal(tmp_path / "gone.toml")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    assert "directory" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--epoch", "3"], ["--epoch", "--epochs"]),
        (["--epochs", "0"], ["--epochs", "at least 1"]),
        (["--epochs", "many"], ["--epochs", "many"]),
        (["--optimizer", "adamm"], ["adamm", "adamw"]),
        (["--lr", "inf"], ["--lr"]),
        (["--lr"], ["--lr"]),
        (["a.toml", "b.toml"], ["b.toml"]),
    ],
    ids=" ".join,
)
def test_an_unknown_flag_or_an_impossible_value_of_one_is_wrong_usage(monkeypatch, tmp_path, flags, words):
    monkeypatch.chdir(tmp_path)
    Path("a.toml").touch()
    Path("b.toml").touch()
    with pytest.raises(UsageError) as error:
        parse(flags)
    assert error.value.exit_code == EXIT_USAGE
    text = str(error.value)
    assert "\n" not in text
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("words", "code"),
    [(["gone.toml"], 78), (["bad.toml"], 78), (["--epochs", "0"], 2), (["--epoch", "3"], 2)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_says_what_is_wrong_in_one_line_and_by_its_exit_code(tmp_path, words, code):
    (tmp_path / "bad.toml").write_text("[train]\nepochs = 0\n")
    ended = subprocess.run(
        [sys.executable, "-m", "trainer", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith("trainer: ")
    assert len(ended.stderr.splitlines()) == 1


def test_configurations_cannot_be_changed():
    for section in (Config(), *(cls() for cls in SECTIONS.values())):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(section, dataclasses.fields(section)[0].name, types.SimpleNamespace())
