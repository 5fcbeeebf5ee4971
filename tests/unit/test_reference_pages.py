"""build/pages: the generated pages list every command, flag, field, setting and slug of the code."""

import importlib
import re
import sys
from pathlib import Path

import msgspec
import pytest

import jobgen.cli
import slipway
import slipway.__main__
from jobgen.base.job import JobSpec
from jobgen.cli.completion import commands_of
from slipway.base.contract import SETTINGS, VERDICTS
from slipway.base.flags import REQUESTS
from slipway.base.slugs import SLUGS
from trainer.config.arguments import command_schema
from trainer.config.commands import COMMANDS
from trainer.config.schema import schema

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "build"))

from pages import PAGES, TABLES  # noqa: E402
from pages.markdown import linked, markdown_of, prose, table  # noqa: E402
from pages.tables import imports_of, rooms_table  # noqa: E402


def section(page, title):
    """Return the part of a page below a heading of level 2."""
    text = f"{page}\n## ".partition(f"\n## {title}\n")[2]
    assert text, title
    return text.partition("\n## ")[0]


def first_cells(text):
    """Return the code in the first column of the tables in ``text``."""
    return [name for cell in re.findall(r"(?m)^\| (.*?) \|", text) for name in re.findall("`([^`]+)`", cell)]


def cells(text, name):
    """Return the other columns of the row of ``name``."""
    (row,) = re.findall(rf"(?m)^\| `{re.escape(name)}`.*? \| (.*) \|$", text)
    return row.split(" | ")


def flags_of(table):
    return [flag for row in table["properties"].values() for key in ("flag", "no_flag") if (flag := row.get(key))]


@pytest.mark.parametrize(
    ("program", "parser"), [("jobgen", jobgen.cli.parser()), ("slipway", slipway.__main__.parser())]
)
def test_command_page_lists_every_command_flag_and_argument(program, parser):
    page = PAGES[f"reference/{program}.md"]()
    commands = commands_of(parser)
    own = {flag for action in parser._actions for flag in action.option_strings if action.dest != "help"}
    assert own <= {*first_cells(page.partition("\n## ")[0])}
    assert re.findall(rf"(?m)^## {program} (.*)$", page) == [*commands]
    for name, command in commands.items():
        text = section(page, f"{program} {name}")
        actions = [action for action in command._actions if action.dest != "help"]
        flags = [flag for action in actions for flag in action.option_strings]
        arguments = [action.metavar for action in actions if not action.option_strings]
        assert sorted(first_cells(text)) == sorted([*flags, *arguments]), name


def test_command_page_states_values_defaults_and_requirements():
    page = PAGES["reference/jobgen.md"]()
    assert cells(section(page, "jobgen run"), "--nodes")[:2] == ["`N`", "`1`"]
    assert cells(section(page, "jobgen run"), "--time")[:2] == ["`TIME`", "1 hour"]
    assert cells(section(page, "jobgen sweep"), "--goal")[0] == "`max` or `min`"
    assert cells(section(page, "jobgen sweep"), "--keep")[1] == "`3`"
    assert cells(section(page, "jobgen study"), "--ranks")[1] == "required"
    assert cells(section(page, "jobgen check"), "SCRIPT")[0] == "`jobscripts`"
    assert "`--dry-run` and `--test-only`" in section(page, "jobgen submit")
    assert "\njobgen study [OPTION ...] --output FOLDER --ranks N,N... --cpus N,N... SPEC " in page
    assert "(default" not in page


def test_trainer_page_lists_every_command_and_flag():
    page = PAGES["reference/trainer.md"]()
    assert re.findall(r"(?m)^## trainer (.*)$", page) == ["CONFIG.toml", *COMMANDS]
    flags = [flag for table in schema()["properties"].values() for flag in flags_of(table)]
    assert first_cells(section(page, "trainer CONFIG.toml")) == [*REQUESTS, *flags]
    for name, command in COMMANDS.items():
        module = importlib.import_module(command.module)
        text = section(page, f"trainer {name}")
        if name == "report":
            assert first_cells(text) == ["PATH", "--output"]
            continue
        tables = command_schema(module.OWN, getattr(module, "TAKEN", {}))["properties"].values()
        assert first_cells(text) == [flag for table in tables for flag in flags_of(table)]
    assert cells(section(page, "trainer CONFIG.toml"), "--figures")[1] == "`on`"
    assert cells(section(page, "trainer CONFIG.toml"), "--synthetic-shape")[1] == "`3 224 224`"


def test_spec_page_lists_every_field_and_spec():
    page = PAGES["reference/spec.md"]()
    fields = msgspec.structs.fields(JobSpec)
    assert first_cells(section(page, "Fields")) == [field.name for field in fields]
    for field in fields:
        default, about = cells(section(page, "Fields"), field.name)[1:]
        assert about
        if field.required:
            assert default == "required"
        elif field.default not in ("", msgspec.NODEFAULT):
            assert default == f"`{str(field.default).lower()}`"
    assert cells(section(page, "Fields"), "client")[0] == '"" or `dask`'
    specs = sorted(path.stem for path in (ROOT / "jobscripts" / "specs").glob("*.toml"))
    assert first_cells(section(page, "Specs of Slipway")) == specs


def test_trainer_config_page_lists_every_key():
    page = PAGES["reference/trainer-config.md"]()
    sections = schema()["properties"]
    assert re.findall(r"(?m)^## (.*)$", page) == [*sections]
    for name, found in sections.items():
        assert first_cells(section(page, name)) == [*found["properties"]]
    assert cells(section(page, "train"), "batch_size")[1] == "`64`"
    values, default = cells(section(page, "model"), "channels_last")[:2]
    assert {"true", "false", "auto"} <= {*re.findall(r"\w+", values)}
    assert default == '`"auto"`'


def test_errors_page_lists_every_slug_with_its_exit_code():
    page = PAGES["reference/errors.md"]()
    assert re.findall(r"(?m)^### (.*)$", page) == [*SLUGS]
    for slug, entry in SLUGS.items():
        text = page.partition(f"\n### {slug}\n")[2].partition("\n### ")[0]
        assert entry.outcome in text
        assert entry.exit_code is None or f" {entry.exit_code}." in text


def test_api_page_lists_public_names_and_only_their_public_members():
    page = PAGES["reference/api.md"]()
    assert re.findall(r"(?m)^## (\w+)$", page) == [
        *(
            "Session",
            "Sampler",
            "peek",
            "clip_grad_norm_",
            "PackedImages",
            "Stopped",
            "SessionError",
            "SlipwayCallback",
        ),
        *("Job", "SubmittedRun", "JobgenError"),
    ]
    assert {*slipway.__all__, *jobgen.__all__} <= set(re.findall(r"(?m)^## (\w+)$", page))
    members = re.findall(r"(?m)^### (.*)$", page)
    assert {"Session.epochs", "Session.warm_up", "SlipwayCallback.ckpt_path"} <= {*members}
    assert {"Job.submit", "SubmittedRun.wait", "SubmittedRun.state"} <= {*members}
    assert not [name for name in members if name.partition(".")[2] in {"capture", "facts", "on_train_batch_end"}]
    assert len({*members}) == len(members)


def test_tables_list_every_setting_and_verdict():
    assert first_cells(TABLES["reference/settings.md"]["settings"]()) == [*SETTINGS]
    assert first_cells(TABLES["reference/verdicts.md"]["verdicts"]()) == [*VERDICTS]


@pytest.mark.parametrize("package", ["jobgen", "slipway", "trainer"])
def test_rooms_table_lists_every_module_above_those_it_imports(package):
    folder = ROOT / "src" / package
    rows = [line.strip("| ").split(" | ") for line in rooms_table(package).splitlines()[2:]]
    names = {f"`{path.name}`" for path in folder.glob("[!_]*.py")}
    names |= {f"`{path.parent.name}/`" for path in folder.glob("*/__init__.py")}
    order = [row[0] for row in rows]
    assert {*order} == names
    for name, _, *imports in rows:
        imported = re.findall("`[^`]+`", imports[0]) if imports else []
        assert {re.sub(r"[`/]|\.py", "", other) for other in imported} == {
            *imports_of(package)[name.strip("`/").removesuffix(".py")]
        }
        assert all(order.index(other) > order.index(name) for other in imported)


@pytest.mark.parametrize("page", PAGES)
def test_generated_page_has_links_in_place_of_mentioned_pages(page):
    text = linked(page, PAGES[page]())
    assert "docs/" not in re.sub(r"https?://\S+", "", text)
    assert text.startswith("# ")
    assert "](" in text


def test_mentioned_page_becomes_link_relative_to_its_page():
    text = "see docs/reference/site.md#fields and docs/howto/data.md."
    found = linked("reference/errors.md", text)
    assert found == "see [site](site.md#fields) and [data](../howto/data.md)."


def test_help_text_becomes_markdown():
    assert prose("with --lr=1, or -- for KEY=VALUE: a_b") == "with `--lr=1`, or `--` for `KEY=VALUE`: `a_b`"
    assert prose("*.py in <dir>, not `a_b` or ``--c``") == r"\*.py in &lt;dir>, not `a_b` or `--c`"


def test_table_omits_empty_columns_and_escapes_bars():
    assert table(("a", "b", "c"), [("1", "", "x|y"), ("2", "", "")]) == "| a | c |\n|---|---|\n| 1 | x\\|y |\n| 2 |  |"


def test_docstring_becomes_markdown():
    text = "Do it::\n\n    a = 1\n\n    b = 2\n\nArgs:\n    name: a ``word``\n        of two lines."
    assert markdown_of(text) == "Do it:\n\n```python\na = 1\n\nb = 2\n```\n\nArgs:\n\n- `name`: a `word` of two lines."
