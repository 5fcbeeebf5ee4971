"""How many lines of a script change under a session: `python tests/changed_lines.py` prints the table."""

import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
PLAIN = sorted((SCRIPTS / "plain").glob("*.py"))


def changed(plain, *options):
    """Return how many lines `diff` removes from a plain script and adds to it."""
    words = ["diff", *options, str(plain), str(SCRIPTS / "session" / plain.name)]
    lines = subprocess.run(words, text=True, capture_output=True, check=False).stdout.splitlines()
    return tuple(sum(line.startswith(sign) for line in lines) for sign in "<>")


def rows():
    """Return a row for each script: its lines, those changed, and those changed other than by their indentation."""
    found = [("script", "lines", "diff", "diff -w")]
    for plain in PLAIN:
        differences = ["-{} +{}".format(*changed(plain, *options)) for options in ([], ["-w"])]
        found.append((plain.stem, str(len(plain.read_text().splitlines())), *differences))
    return found


if __name__ == "__main__":
    for row in rows():
        print("{:<20}{:>5}  {:>9}  {:>9}".format(*row))
