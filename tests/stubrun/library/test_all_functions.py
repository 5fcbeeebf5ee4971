"""Rules for each function of jobscripts/lib: a test of this folder calls it, and a comment describes it."""

import ast
import re
import subprocess
from pathlib import Path

from bash_library import LIB, START


def functions():
    """Return the names of all functions of the library."""
    found = set()
    kinds = [("slurm", "apptainer"), ("slurm", "pyxis"), ("pbs", "podman"), ("local", "apptainer"), ("dask", "podman")]
    for scheduler, runtime in kinds:
        code = START.format(scheduler=scheduler, runtime=runtime, lib=LIB).partition("SLIPWAY_")[0] + "declare -F"
        lines = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout
        found |= {line.split()[-1] for line in lines.splitlines()}
    return found


def test_every_library_function_is_called_by_a_test():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(__file__).parent.glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    snippets = " ".join(node.value for node in nodes if isinstance(node.value, str))
    calls = set(re.findall(r"(?:^|[\s;&|(!\"=])(\w+)(?=[\s;)\"]|$)", snippets))
    assert len(functions()) > 60
    assert functions() - calls == set()


def test_every_library_function_has_comment():
    for path in sorted(LIB.glob("*.bash")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if re.fullmatch(r"\w+\(\) \{", line):
                assert lines[number - 1].startswith("#"), f"{path.name}: {line}"


def test_functions_defined_in_several_files_are_commented_as_overrides():
    """Files that are sourced in place of each other define the same functions, and some override a default."""
    comments = {}
    for path in sorted(LIB.glob("*.bash")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if found := re.fullmatch(r"(\w+)\(\) \{(?: #.*)?", line):
                first = number
                while lines[first - 1].startswith("#"):
                    first -= 1
                comments.setdefault(found[1], {})[path.name] = " ".join(lines[first:number])
    twice = {name: files for name, files in comments.items() if len(files) > 1}
    assert len(twice) > 10
    marks = re.compile(r"[Ee]ach\W+(?:scheduler|runtime|launcher)|[Oo]verrides?\W|each\W+defines?|override")
    missing = [(name, file) for name, files in twice.items() for file, text in files.items() if not marks.search(text)]
    assert missing == []
