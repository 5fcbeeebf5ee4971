"""From a TOML file and flags to a valid Config, and the messages for users if there is none."""

import ast
import dataclasses
import inspect
import subprocess
import sys
import types
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import tomli_w

from messages import assert_error, refused
from slipway.base.contract import EXIT_CONFIG, EXIT_USAGE, VERSION
from trainer.config import settings as config_module
from trainer.config.cli import load, parse
from trainer.config.settings import Launch, Settings, TrainConfig, experiment

ROOT = Path(__file__).resolve().parents[2]
SECTIONS: dict[str, type] = get_type_hints(Settings)
FIELDS = [(section, field.name) for section, cls in SECTIONS.items() for field in dataclasses.fields(cls)]


def another_value(hint, value):
    """Return a valid value of type ``hint`` other than ``value``."""
    if NoneType in get_args(hint):
        return {int: 7, float: 0.5, str: 'a "b" \\ é\n[c]'}[get_args(hint)[0]]
    if get_origin(hint) is Literal:
        return next(choice for choice in reversed(get_args(hint)) if choice != value)
    if bool in get_args(hint):
        return True
    if get_origin(hint) is tuple:
        return (1, 2, 3)
    return {
        bool: lambda: not value,
        int: lambda: value + 1,
        float: lambda: value / 2 + 0.125,
        str: lambda: 'a "b" \\ é\n[c]',
    }[hint]()


def changed_settings():
    """Return Settings in which every field differs from its default, except for one of two alternatives."""
    sections = {}
    for name, cls in SECTIONS.items():
        defaults, hints = cls(), get_type_hints(cls)
        sections[name] = cls(**{key: another_value(hints[key], getattr(defaults, key)) for key in hints})
    sections["data"] = dataclasses.replace(sections["data"], dataset="mine.own:photos")
    sections["launch"] = dataclasses.replace(sections["launch"], profile="10-14", profile_ranks="all")
    sections["train"] = dataclasses.replace(sections["train"], batch_size=TrainConfig().batch_size)
    return Settings(**sections)


def flags_for(settings):
    """Return the flags that set each field of ``settings``, except the field that an alternative replaces."""
    words = []
    for section, name in FIELDS:
        value = getattr(getattr(settings, section), name)
        if name == "batch_size":
            continue
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


def assert_refused(path, slug, *values):
    """Assert that ``path`` is refused with a one-line error that names these values."""
    with refused(slug, path, *values, code=EXIT_CONFIG) as error:
        load(path)
    assert "\n" not in str(error.value)


def is_sentence(node):
    """Return whether ``node`` of a syntax tree is a bare string that ends in a full stop."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and str(node.value.value)[-1:] == "."


def test_unset_fields_have_default_values():
    assert parse(["--seed", "0"]) == Settings()


def test_missing_arguments_are_refused():
    with refused("missing-argument", "CONFIG.toml", "configs/", "--help", code=EXIT_USAGE):
        parse([])


def test_every_field_has_a_flag_of_same_name():
    assert parse(flags_for(changed_settings())) == changed_settings()


@pytest.mark.parametrize("off", ["0", "0.0", '""'])
def test_zero_or_empty_value_disables_optional_field(tmp_path, off):
    for name, section in SECTIONS.items():
        for key, hint in get_type_hints(section).items():
            if (
                NoneType in get_args(hint)
                and (str in get_args(hint)) == (off == '""')
                and not (off == "0.0" and int in get_args(hint))
            ):
                path = written(tmp_path, f"[{name}]\n{key} = {off}\n")
                assert getattr(getattr(load(path), name), key) is None
                assert getattr(getattr(parse([f"--{key.replace('_', '-')}", off.strip('"')]), name), key) is None


def test_documented_flags_are_fields():
    known = "backend epochs batch_size val_batch_size lr gamma seed log_interval dry_run resume output_dir amp"
    known += " grad_accum_steps clip_grad workers"
    assert set(known.split()) <= {name for _, name in FIELDS}


def test_field_names_are_unique_across_sections():
    names = [name for _, name in FIELDS]
    assert len(names) == len(set(names))


def test_later_file_overrides_earlier_file(tmp_path):
    base = written(tmp_path, "[train]\nepochs = 3\nseed = 5\n[optim]\nclip_grad = 1.0\n")
    overlay = tmp_path / "overlay.toml"
    overlay.write_text("[train]\nepochs = 4\n[optim]\nclip_grad = 0\n[launch]\ndevice = 'cpu'\n")
    settings = parse([str(base), str(overlay), "--seed", "6"])
    assert (settings.train.epochs, settings.train.seed, settings.optim.clip_grad) == (4, 6, None)
    assert settings.launch.device == "cpu"


class TestAlternatives:
    """--batch-size and --batch-size-per-rank are alternatives."""

    def test_setting_both_batch_sizes_is_refused(self, tmp_path):
        both = ["--batch-size ", "--batch-size-per-rank"]
        with refused("flag-conflict", *both, code=EXIT_USAGE):
            parse(["--batch-size", "64", "--batch-size-per-rank", "8"])
        path = written(tmp_path, "[train]\nbatch_size = 64\nbatch_size_per_rank = 8\n")
        assert_refused(path, "conflicting-settings", *both)

    @pytest.mark.parametrize(
        ("file", "flag"), [("batch_size", "batch_size_per_rank"), ("batch_size_per_rank", "batch_size")]
    )
    def test_flag_overrides_alternative_batch_size_in_file(self, tmp_path, file, flag):
        path = written(tmp_path, f"[train]\n{file} = 32\n")
        train = parse([str(path), f"--{flag}", "16"]).train
        assert getattr(train, flag) == 16
        assert getattr(train, file) == getattr(TrainConfig(), file)

    def test_effective_batch_size_setting_is_saved(self, tmp_path):
        for flag in ("batch_size", "batch_size_per_rank"):
            settings = parse([f"--{flag}", "16"])
            assert load(written(tmp_path, tomli_w.dumps(experiment(settings)))).train == settings.train


def test_version_and_print_config_print_and_exit_with_0(tmp_path, capsys):
    for words in (["--version"], [str(written(tmp_path, "[optim]\nlr = 3.0\n")), "--print-config", "--epochs", "3"]):
        with pytest.raises(SystemExit) as end:
            parse(words)
        assert end.value.code == 0
    version, _, printed = capsys.readouterr().out.partition("\n")
    assert version == f"slipway {VERSION}"
    loaded = load(written(tmp_path, printed))
    assert (loaded.optim.lr, loaded.train.epochs) == (3.0, 3)


def test_help_lists_every_flag_and_exits_with_0(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert [name for _, name in FIELDS if f"--{name.replace('_', '-')}" not in text] == []


def test_every_field_has_a_docstring_sentence():
    undocumented = []
    for cls in ast.parse(inspect.getsource(config_module)).body:
        if isinstance(cls, ast.ClassDef) and cls.name not in {"Config", "Settings"}:
            for field, after in zip(cls.body, [*cls.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and not is_sentence(after):
                    undocumented.append(f"{cls.name}.{ast.unparse(field.target)}")
    assert undocumented == []


def test_flag_overrides_file_and_file_overrides_default(tmp_path):
    path = written(tmp_path, "[train]\nepochs = 3\nseed = 5\n")
    for argv in ([str(path), "--epochs", "4"], ["--epochs", "4", str(path)]):
        train = parse(argv).train
        assert (train.epochs, train.seed, train.batch_size) == (4, 5, 64)


def test_no_flag_disables_switch_enabled_in_file(tmp_path):
    path = written(tmp_path, "[run]\ntensorboard = true\n")
    assert parse([str(path)]).run.tensorboard
    assert not parse([str(path), "--no-tensorboard"]).run.tensorboard


def test_saved_configuration_is_read_back_unchanged(tmp_path):
    settings = changed_settings()
    path = written(tmp_path, tomli_w.dumps(experiment(settings)))
    assert load(path) == dataclasses.replace(settings, launch=Launch())


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_every_committed_configuration_loads(path):
    assert isinstance(load(path), Settings)


@pytest.mark.parametrize(
    ("text", "slug", "values"),
    [
        ("[trian]\nepochs = 3\n", "unknown-key", ["'trian'", "'train'", ", ".join(SECTIONS)]),
        ("[train]\nepoch = 3\n", "unknown-key", ["'epoch'", "[train]", "'epochs'", "grad_accum_steps"]),
        ("train = 3\n", "unknown-key", ["'train'", "[train]"]),
        (
            "[optim]\noptimizer = 'adamm'\n",
            "bad-value",
            ["optim.optimizer: ", "'adamm'", "'adam'", "sgd, adadelta", "adam, adamw"],
        ),
    ],
)
def test_unknown_name_is_refused_and_nearest_suggested(tmp_path, text, slug, values):
    assert_refused(written(tmp_path, text), slug, *values)


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
def test_invalid_type_or_value_is_refused_with_key(tmp_path, text, key, reason):
    assert_refused(written(tmp_path, text), "bad-value", f"{key}: ", reason)


@pytest.mark.parametrize("data", [b"epochs: 3\n", b"[train", b"\xff\xfe\x00", b"a = 1\na = 2\n"])
def test_invalid_toml_file_is_refused(tmp_path, data):
    path = tmp_path / "mine.toml"
    path.write_bytes(data)
    assert_refused(path, "bad-toml")


@pytest.mark.parametrize(("name", "values"), [("gone.toml", ["No such file", "configs/"]), (".", ["Is a directory"])])
def test_missing_file_or_folder_path_is_refused(tmp_path, name, values):
    assert_refused(tmp_path / name, "cannot-read", *values)


@pytest.mark.parametrize(
    ("flags", "slug", "words"),
    [
        (["--epoch", "3"], "unknown-flag", ["--epoch", "--epochs"]),
        (["--epochs", "0"], "bad-flag-value", ["--epochs", "'0'", "1"]),
        (["--epochs", "many"], "bad-flag-value", ["--epochs", "'many'", "1"]),
        (["--optimizer", "adamm"], "bad-flag-value", ["adamm", "adamw"]),
        (["--lr", "inf"], "bad-flag-value", ["--lr", "'inf'"]),
        (["--lr"], "bad-flag-value", ["--lr"]),
        (["a.toml", "b.txt"], "unexpected-argument", ["b.txt"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_unknown_flag_or_invalid_flag_value_is_usage_error(monkeypatch, tmp_path, flags, slug, words):
    monkeypatch.chdir(tmp_path)
    Path("a.toml").touch()
    Path("b.toml").touch()
    with refused(slug, *words, code=EXIT_USAGE) as error:
        parse(flags)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "code", "slug"),
    [
        (["gone.toml"], 78, "cannot-read"),
        (["bad.toml"], 78, "bad-value"),
        (["--epochs", "0"], 2, "bad-flag-value"),
        (["--epoch", "3"], 2, "unknown-flag"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_command_prints_one_line_error_and_sets_exit_code(tmp_path, words, code, slug):
    (tmp_path / "bad.toml").write_text("[train]\nepochs = 0\n")
    ended = subprocess.run(
        [sys.executable, "-m", "trainer", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (code, "")
    assert_error(ended.stderr, slug, words[0])
    assert ended.stderr.startswith("trainer: ")
    assert len(ended.stderr.splitlines()) == 1


def test_settings_sections_cannot_be_modified():
    for section in (Settings(), *(cls() for cls in SECTIONS.values())):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(section, dataclasses.fields(section)[0].name, types.SimpleNamespace())
