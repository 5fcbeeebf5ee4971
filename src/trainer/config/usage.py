"""The text of ``--help``, of the trainer and of its commands: all flags by section, out of a schema."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from slipway.base.flags import switch_words


def help_text(schema: Mapping[str, Any], *, prog: str, usage: str, description: str, epilog: str = "") -> str:
    """Return all flags of ``schema`` by section, with what they mean and their defaults.

    Args:
        schema: what ``trainer.config.schema`` returns, or that of a command.
        prog: the words that start it.
        usage: those, and what follows them.
        description: what it does.
        epilog: what else there is; its lines are kept.
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
