"""Count the lines of a script that a session changes: `python tests/changed_lines.py` prints the table."""

import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
PLAIN = sorted((SCRIPTS / "plain").glob("*.py"))


def changed(plain, *options):
    """Return the numbers of lines that `diff` removes from and adds to a plain script."""
    words = ["diff", *options, str(plain), str(SCRIPTS / "session" / plain.name)]
    lines = subprocess.run(words, text=True, capture_output=True, check=False).stdout.splitlines()
    return tuple(sum(line.startswith(sign) for line in lines) for sign in "<>")


def rows():
    """Return a row for each script: its number of lines, changed lines, and lines changed beyond indentation."""
    found = [("script", "lines", "diff", "diff -w")]
    for plain in PLAIN:
        differences = ["-{} +{}".format(*changed(plain, *options)) for options in ([], ["-w"])]
        found.append((plain.stem, str(len(plain.read_text().splitlines())), *differences))
    return found


if __name__ == "__main__":
    for row in rows():
        print("{:<20}{:>5}  {:>9}  {:>9}".format(*row))
