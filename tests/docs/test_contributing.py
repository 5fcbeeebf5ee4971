"""Each recipe of CONTRIBUTING.md, applied to a fresh copy of the tree, and its commands run there."""

import os
import re
import subprocess
import sys

import pytest

from readme import ROOT, fresh_clone

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Recipes\n")[2]
RECIPES = dict(re.findall(r"### (.+?)\n(.*?)(?=\n### |\n## |\Z)", PAGE, flags=re.DOTALL))


def test_contributing_page_holds_all_recipes():
    assert len(RECIPES) == 6
    assert sum("```diff" in text for text in RECIPES.values()) == 5


@pytest.mark.parametrize("name", RECIPES)
def test_diffs_of_recipe_apply(name, tmp_path):
    apply_diffs(name, fresh_clone(tmp_path / "tree"))


def apply_diffs(name, tree):
    for diff in re.findall(r"```diff\n(.*?)```", RECIPES[name], flags=re.DOTALL):
        subprocess.run(["git", "apply", "-"], cwd=tree, input=diff, text=True, check=True)


SLOW = {"A setting of job scripts"}
"""Takes minutes, and shares most of its commands with others."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.prove if name in SLOW else ()) for name in RECIPES]
)
def test_commands_of_recipe_succeed_after_its_diffs(name, tmp_path):
    tree = fresh_clone(tmp_path / "tree")
    apply_diffs(name, tree)
    commands = re.findall(r"(?m)^\$ (.*)$", RECIPES[name])
    assert commands
    kept = {key: text for key, text in os.environ.items() if not key.startswith(("SLIPWAY_", "PYTHON"))}
    path = {
        "PATH": f"{sys.prefix}/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": f"{tree}/src",
        "OMP_NUM_THREADS": "1",
    }
    for command in commands:
        words = ["bash", "-o", "pipefail", "-c", command]
        done = subprocess.run(words, cwd=tree, env=kept | path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
