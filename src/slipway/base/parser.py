"""An argparse parser whose errors carry a slug, as those of all programs here do. Python 3.9 suffices."""

from __future__ import annotations

import argparse
from typing import NoReturn

from slipway.base.contract import EXIT_USAGE
from slipway.base.errors import labelled

SLUG = "bad-arguments"


class Parser(argparse.ArgumentParser):
    """Parses a command line; argparse makes the parsers of its commands of the same class."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and one line of error, and exit."""
        self.exit(EXIT_USAGE, f"{self.format_usage()}{self.prog}: {labelled('error', SLUG, message)}\n")
