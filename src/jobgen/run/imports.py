"""imports.py FOLDER [SCRIPT]: print which modules this Python lacks: torch, and those that a script imports.

The output is one line: ``missing [NAME ...]``, or ``invalid LINE TEXT`` for a script that is not valid Python. FOLDER
is the first folder in which the script finds modules. The Python of a user's environment runs this file: it supports
Python 3.6, and imports little, and only of the standard library. It imports none of the modules that it looks for.
"""

import ast
import importlib.util
import sys


def main(folder: str, script: str = "") -> str:
    """Return the line."""
    missing = [] if is_there("torch") else ["torch"]
    if script:
        sys.path.insert(0, folder)
        with open(script, "rb") as file:  # noqa: PTH123 -- starts faster without pathlib
            text = file.read()
        try:
            tree = ast.parse(text)
            compile(tree, script, "exec", dont_inherit=True)  # finds more, such as a return outside a function
        except (SyntaxError, ValueError) as error:  # ValueError: a NUL
            return f"invalid {getattr(error, 'lineno', None) or 1} {getattr(error, 'msg', error)}"
        if not changes_path(tree):
            missing += [name for name in imports_in(tree) if name != "torch" and not is_there(name)]
    return " ".join(["missing", *missing])


def imports_in(tree: ast.Module) -> "list[str]":
    """Return the modules that a script always imports: not within ``try``, ``if`` or a function, nor relative ones."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return [*dict.fromkeys(name.partition(".")[0] for name in names)]


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
    sys.stdout.flush()  # lines that the environment printed at its start
    sys.stdout.buffer.write(f"{main(*sys.argv[1:])}\n".encode())
