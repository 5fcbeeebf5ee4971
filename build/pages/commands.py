"""The pages of the command lines of jobgen, slipway and trainer, from their parsers."""

import argparse
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jobgen.cli
import slipway.__main__
import slipway.report.cli
from jobgen.cli.completion import commands_of
from pages.markdown import GENERATED, code, prose, table
from slipway.base.flags import switch_words, valid_values
from trainer.config.arguments import command_schema, description
from trainer.config.commands import COMMANDS
from trainer.config.schema import schema

HEAD = f"""\
# {{program}}: commands and flags

{GENERATED.format(source="the parsers")}
{{about}}

Errors are one line with a slug, which docs/reference/errors.md explains; docs/reference/exit-codes.md lists the exit
codes. `-h` or `--help` after a command prints its flags.
"""
DEFAULT = re.compile(r" \(default: ([^()]*)\)")
COLUMNS = ("flag", "value", "default", "meaning")
TRAIN = (
    "Train. Each file overrides the files before it, and flags override all files. Each key of "
    "docs/reference/trainer-config.md is a flag, with `-` in place of `_`. If a flag is repeated, its last value wins."
)
REQUESTS = (
    ("`-h`, `--help`", "print all flags"),
    ("`--version`", "print the version"),
    ("`--print-config`", "print the configuration that files and flags result in, as TOML"),
)
"""Flags of the trainer that print a text instead of training, and what they print."""


def jobgen_page() -> str:
    """Return the text of docs/reference/jobgen.md."""
    parser = jobgen.cli.parser()
    return page("jobgen", " ".join(parser.description.split()), parser)


def slipway_page() -> str:
    """Return the text of docs/reference/slipway.md."""
    parser = slipway.__main__.parser()
    return page("slipway", parser.description, parser)


def page(program: str, about: str, parser: argparse.ArgumentParser) -> str:
    """Return the page of a program with sub-commands."""
    commands, summaries = commands_of(parser), summaries_of(parser)
    rows = [(f"[{program} {name}](#{program}-{name})", prose(summaries[name])) for name in commands]
    parts = [HEAD.format(program=program, about=about).rstrip(), table(("command", "meaning"), rows)]
    own = [action for action in parser._actions if action.option_strings and action.dest != "help"]  # noqa: SLF001
    parts += [table(COLUMNS, [row_of(action, parser) for action in own])] if own else []
    for name, command in commands.items():
        parts += [f"## {program} {name}", *command_parts(command, summaries[name])]
    return "\n\n".join(parts) + "\n"


def summaries_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the line of each sub-command in the help of ``parser``."""
    actions = [action for action in parser._actions if isinstance(action.choices, dict)]  # noqa: SLF001
    return {choice.dest: choice.help for action in actions for choice in action._choices_actions}  # noqa: SLF001


def command_parts(command: argparse.ArgumentParser, summary: str) -> Iterator[str]:
    """Yield the parts of a page about one command: its purpose, its usage, and a table for each group of flags."""
    about = command.description or f"{summary[0].upper()}{summary[1:]}."
    yield from map(prose, about.split("\n\n"))
    yield f"```text\n{usage_of(command)}\n```"
    for group in command._action_groups:  # noqa: SLF001 -- argparse has no public list
        actions = [action for action in group._group_actions if action.dest != "help"]  # noqa: SLF001
        if not actions:
            continue
        if group.title and group.title not in {"positional arguments", "options"}:
            yield f"### {group.title.capitalize()}"
        kind = ("argument", *COLUMNS[1:]) if not actions[0].option_strings else COLUMNS
        yield table(kind, [row_of(action, command) for action in actions])
    for group in command._mutually_exclusive_groups:  # noqa: SLF001
        names = [f"`{action.option_strings[-1]}`" for action in group._group_actions]  # noqa: SLF001
        yield f"{' and '.join(names)} exclude each other."
    if command.epilog:
        first, _, examples = command.epilog.partition("\n")
        yield f"{first[0].upper()}{first[1:]}"
        yield "```text\n" + re.sub(r"(?m)^  ", "", examples) + "\n```"


def usage_of(command: argparse.ArgumentParser) -> str:
    """Return the usage line: the command's own, or one with its required flags and its arguments."""
    if command.usage:
        return command.usage % {"prog": command.prog}
    options = [action for action in command._actions if action.option_strings and action.dest != "help"]  # noqa: SLF001
    arguments = [action for action in command._actions if not action.option_strings]  # noqa: SLF001
    words = [command.prog, *(["[OPTION ...]"] if any(not action.required for action in options) else [])]
    words += [f"{action.option_strings[-1]} {value_of(action)}".strip() for action in options if action.required]
    forms = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{} [{} ...]"}
    words += [forms[action.nargs].replace("{}", value_of(action)) for action in arguments]
    if command.get_default("takes_arguments"):
        words.append("[-- ARGUMENT ...]")
    return " ".join(words)


def row_of(action: argparse.Action, command: argparse.ArgumentParser) -> tuple[str, ...]:
    """Return the row of a flag or an argument. Its default stands at the end of its help text, if it has one."""
    choices = ", ".join(map(str, action.choices or []))
    text = (action.help or "") % {**vars(action), "choices": choices, "prog": command.prog}
    default = "required" if action.option_strings and action.required else ""
    if found := DEFAULT.search(text):
        text, default = text.replace(found[0], ""), found[1]
        if isinstance(action.default, list):
            default = " ".join(action.default)
    names = ", ".join(map(code, action.option_strings)) or code(value_of(action))
    values = action.choices if action.choices and not action.metavar else [value_of(action)]
    value = " or ".join(map(code, values)) if action.option_strings else ""
    return names, value, default_cell(default), prose(text)


def default_cell(text: str) -> str:
    """Return a default as code if it is a value, and as prose if it is a description."""
    return prose(text) if " " in text or text == "required" else code(text)


def value_of(action: argparse.Action) -> str:
    """Return the placeholder of a flag's value, or the name of an argument; "" for a switch."""
    if action.nargs == 0:
        return ""
    if action.metavar:
        return str(action.metavar)
    return "{" + ",".join(action.choices) + "}" if action.choices else action.dest.upper()


def trainer_page() -> str:
    """Return the text of docs/reference/trainer.md."""
    about = (
        "The bundled image classifier. With configuration files and flags it trains; with the name of a command as "
        "the first word, it runs that command."
    )
    rows = [("[trainer CONFIG.toml](#trainer-configtoml)", "train")]
    rows += [(f"[trainer {name}](#trainer-{name})", prose(command.summary)) for name, command in COMMANDS.items()]
    parts = [HEAD.format(program="trainer", about=about).rstrip(), table(("command", "meaning"), rows)]
    parts += [
        "For a configuration file with the name of a command, write `./NAME`.",
        "## trainer CONFIG.toml",
        TRAIN,
        "```text\ntrainer [CONFIG.toml [OVERLAY.toml ...]] [flags]\n```",
        table(("flag", "meaning"), REQUESTS),
        *schema_parts(schema()["properties"].items()),
    ]
    for name, command in COMMANDS.items():
        parts.append(f"## trainer {name}")
        module = importlib.import_module(command.module)
        if hasattr(module, "parser"):
            parts += command_parts(module.parser(), command.summary)
            continue
        parts.append(prose(description(name)))
        parts.append(f"```text\ntrainer {name} {command.usage}\n```")
        flags = command_schema(module.OWN, getattr(module, "TAKEN", {}))["properties"]
        parts += schema_parts(flags.items(), heading=len(flags) > 1)
    return "\n\n".join(parts) + "\n"


def schema_parts(sections: Iterable[tuple[str, Any]], *, heading: bool = True) -> Iterator[str]:
    """Yield a table of flags for each section of a schema, with the section's description above it."""
    for _, section in sections:
        if heading:
            yield f"### {section['description'].rstrip('.')}"
        yield table(COLUMNS, [schema_row(key) for key in section["properties"].values()])


def schema_row(key: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the row of a flag."""
    names = f"`{key['flag']}`"
    value = valid_values(key)
    if "no_flag" in key:
        names, value = f"{names}, `{key['no_flag']}`", "".join(f"no value, or {word}" for word in switch_words(key))
    return names, value, code(shown(key["default"])), prose(key["description"])


def shown(value: Any) -> str:
    """Return a default of the schema as it is written after a flag."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
