"""Markdown of the generated pages: tables, links between pages, and docstrings."""

import inspect
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

GENERATED = "<!-- Generated from {source} by build/generate: do not edit. -->"
MENTION = re.compile(r"(?<![\w/`])docs/([\w/-]+\.md)(#[\w-]+)?")
"""A page named in the code: docs/FOLDER/NAME.md, with an anchor or without."""
CODE = re.compile(
    r"(?<![\w`-])(--(?:[A-Za-z][\w-]*)?(?:=\w+(?:,\w+)*)?|[\w.]+=\w+(?:[.,]\w+)*|\w*[A-Za-z]\w*_\w+(?:\.\w+)*)(?![\w`(-])"
)
"""Words of help texts that are code: flags, names with underscores, and assignments."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, without the columns that are empty in all rows."""
    lines = [[text.replace("|", "\\|") for text in row] for row in rows]
    used = [column for column in range(len(head)) if any(line[column] for line in lines)]
    found = [f"| {' | '.join(line[column] for column in used)} |" for line in [head, *lines]]
    return "\n".join([found[0], "|" + "---|" * len(used), *found[1:]])


def code(text: str) -> str:
    """Return ``text`` as code; "" stays empty."""
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Return a help text, which contains no Markdown, on one line with its flags and names as code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.replace("``", "`").split()))
    for number, part in enumerate(parts[::2]):
        escaped = part.replace("<", "&lt;").replace("*", r"\*")
        parts[2 * number] = CODE.sub(r"`\1`", escaped)
    return "".join(parts)


def linked(page: str, text: str) -> str:
    """Return the text of ``page`` (its path below docs/) with the pages that it mentions as links."""

    def link(found: re.Match[str]) -> str:
        target = os.path.relpath(found[1], PurePosixPath(page).parent)
        words = PurePosixPath(target).stem.replace("-", " ")
        return f"[{words}]({target}{found[2] or ''})"

    return MENTION.sub(link, text)


def markdown_of(docstring: str) -> str:
    """Return a docstring as Markdown, with Args, Returns and Raises as lists and indented code as fenced code."""
    blocks = []
    for block in inspect.cleandoc(docstring).split("\n\n"):
        head, _, rest = block.partition("\n")
        if re.fullmatch(r"(Args|Returns|Raises):", head):
            items = re.findall(r"(?m)^    (\S[^:]*): (.*(?:\n {5,}.*)*)", rest)
            blocks += [head, "\n".join(f"- `{name}`: {' '.join(text.split())}" for name, text in items)]
        elif block.startswith("    "):
            blocks.append(f"```python\n{textwrap.dedent(block)}\n```")
        elif block != "::":
            blocks.append(re.sub("::$", ":", block))
    text = "\n\n".join(blocks).replace("\n```\n\n```python\n", "\n\n")  # code with an empty line
    return re.sub(r"(?<!`)``(?!`)", "`", text)
