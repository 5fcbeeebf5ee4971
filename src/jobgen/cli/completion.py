"""Bash completion: inserts the parser's commands and options into ``completion.bash``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Dict, List


def completion(parser: argparse.ArgumentParser) -> str:
    """Return the text of the completion script, which users ``source``."""
    commands = commands_of(parser)
    options = {name: _options(command) for name, command in commands.items()}
    rows = [f"            {name}:-*) choices='{' '.join(words)}' ;;" for name, words in options.items()]
    text = (Path(__file__).parent / "completion.bash").read_text(encoding="utf-8")
    text = text.replace("@{commands}", " ".join([*commands, *_options(parser)]))
    return text.replace("@{options}", "\n".join(rows).lstrip())


def commands_of(parser: argparse.ArgumentParser) -> Dict[str, argparse.ArgumentParser]:
    """Return the parser of each sub-command."""
    choices: Dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # noqa: SLF001 -- argparse has no public list
        if isinstance(action.choices, dict):
            choices.update(action.choices)
    return choices


def _options(parser: argparse.ArgumentParser) -> List[str]:
    names = [name for action in parser._actions for name in action.option_strings]  # noqa: SLF001
    return sorted(name for name in names if name.startswith("--"))
