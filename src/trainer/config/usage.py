"""The ``--help`` text of the trainer and its commands, generated from a schema."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from slipway.base.flags import switch_words


def help_text(schema: Mapping[str, Any], *, prog: str, usage: str, description: str, epilog: str = "") -> str:
    """Return a help text that lists all flags of ``schema`` by section, with their meanings and defaults.

    Args:
        schema: the schema of ``trainer.config.schema`` or of a command.
        prog: the program's name, including the command.
        usage: the usage line.
        description: the text above the flags.
        epilog: the text below the flags; line breaks are kept.
    """
    parser = argparse.ArgumentParser(prog=prog, usage=usage, description=description, add_help=False)
    for section in schema["properties"].values():
        group = parser.add_argument_group(section["description"].rstrip("."))
        for key in section["properties"].values():
            text = key["description"].replace("%", "%%")
            if "no_flag" in key:
                words = " or ".join(switch_words(key))
                text += f" ({key['flag']} {words}; default: {key['default']})" if words else ""
                group.add_argument(key["flag"], key["no_flag"], action="store_true", help=text)
                continue
            default = " ".join(map(str, key["default"])) if isinstance(key["default"], list) else key["default"]
            metavars = {"integer": "N", "number": "X", "array": "N"}
            texts = [
                "{" + ",".join(choice["enum"]) + "}" if "enum" in choice else metavars.get(choice["type"], "TEXT")
                for choice in key.get("anyOf", [key])
            ]
            text += f" (default: {default})" if default != "" else ""
            count = len(key["prefixItems"]) if "prefixItems" in key else None
            group.add_argument(key["flag"], nargs=count, metavar="|".join(texts), help=text)
    return parser.format_help() + (f"\n{epilog}\n" if epilog else "")
