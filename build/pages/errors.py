"""The page of errors and warnings, from the catalogue of slugs."""

from pages.markdown import GENERATED
from slipway.base.slugs import GROUPS

HEAD = f"""\
# Errors and warnings

{GENERATED.format(source="src/slipway/base/slugs.py")}
`trainer`, `slipway`, `jobgen` and the job scripts print errors as `PROGRAM: error[SLUG]: ...`, and warnings as
`PROGRAM: warning[SLUG]: ...`. The message contains the file, the value or the node. This page lists when each occurs
and what to do. `jobgen explain SLUG` prints one entry; `jobgen explain WORD` lists the entries that mention a word.
Some slugs are errors in one place and warnings in another. A warning never ends a program.
docs/reference/exit-codes.md lists the exit codes.
"""


def errors_page() -> str:
    """Return the text of docs/reference/errors.md."""
    parts = [HEAD.rstrip()]
    for group, entries in GROUPS.items():
        parts.append(f"## {group}")
        for slug, entry in entries.items():
            parts += [f"### {slug}", f"{entry.when} {entry.outcome}", f"**What to do:** {entry.remedy}"]
    return "\n\n".join(parts) + "\n"
