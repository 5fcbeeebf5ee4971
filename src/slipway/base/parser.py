"""An argparse parser whose errors have a slug, like all errors of Slipway's programs. It supports Python 3.9."""

from __future__ import annotations

import argparse
from typing import NoReturn

from slipway.base.contract import EXIT_USAGE
from slipway.base.errors import add_label

SLUG = "bad-arguments"


class Parser(argparse.ArgumentParser):
    """Command-line parser; argparse uses the same class for the parsers of subcommands."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and a one-line error, and exit."""
        self.exit(EXIT_USAGE, f"{self.format_usage()}{self.prog}: {add_label('error', SLUG, message)}\n")
