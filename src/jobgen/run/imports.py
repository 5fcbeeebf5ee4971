"""imports.py FOLDER [SCRIPT]: print as JSON whether this Python has torch, and which of a script's imports it lacks.

FOLDER is the first folder in which the script finds modules. The Python of a user's environment runs this file: it
imports only the standard library, and supports Python 3.6. It imports none of the modules that it looks for.
"""

import ast
import importlib.util
import json
import sys
from typing import Any, Dict, Iterator


def main(folder: str, script: str = "") -> Dict[str, Any]:
    """Return ``torch``, whether this Python has it, and ``missing``, or ``line`` and ``error`` for invalid Python."""
    answer: Dict[str, Any] = {"torch": is_there("torch"), "missing": []}
    if not script:
        return answer
    sys.path.insert(0, folder)
    with open(script, "rb") as file:  # noqa: PTH123 -- starts faster without pathlib
        text = file.read()
    try:
        tree = ast.parse(text)
        compile(tree, script, "exec", dont_inherit=True)  # finds more, such as a return outside a function
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL
        return {**answer, "line": getattr(error, "lineno", None) or 1, "error": getattr(error, "msg", str(error))}
    if not changes_path(tree):
        names = dict.fromkeys(name.partition(".")[0] for name in imports_in(tree))
        answer["missing"] = [name for name in names if not is_there(name)]
    return answer


def imports_in(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a script always imports: not within ``try``, ``if`` or a function, nor relative ones."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def changes_path(tree: ast.Module) -> bool:
    """Return whether a script uses ``sys.path``: it may then find modules in other folders."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "path"
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
        for node in ast.walk(tree)
    )


def is_there(name: str) -> bool:
    """Return whether this Python finds the module ``name``; also if it cannot tell."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):  # ValueError: of __main__
        return True


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201 -- the answer
