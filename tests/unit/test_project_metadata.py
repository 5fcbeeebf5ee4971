"""Project metadata: citation, changelog, workflows and hooks, checked against the project."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_citation_has_current_version_and_license():
    fields = dict(re.findall(r"(?m)^([\w-]+): (.*)$", text_of("CITATION.cff")))
    assert (fields["version"], fields["license"]) == (PROJECT["version"], PROJECT["license"])


def test_changelog_has_unreleased_section_and_known_headings():
    text = text_of("CHANGELOG.md")
    assert re.findall(r"(?m)^## (.*)$", text)[0] == "Unreleased"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"(?m)^### (.*)$", text)) <= kinds


def test_commit_hook_runs_full_lint():
    assert "entry: build/lint" in text_of(".pre-commit-config.yaml")
    assert "build/lint" in text_of("Makefile")


WORKFLOW = yaml.safe_load(text_of(".github/workflows/ci.yml"))


def test_workflow_has_only_read_permission():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert [name for name, job in WORKFLOW["jobs"].items() if "permissions" in job] == []


def test_every_workflow_action_is_pinned_to_version():
    used = [step["uses"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", name)] == []


def test_workflow_jobs_run_every_test_part():
    makefile, named = text_of("Makefile"), re.compile(r'PARTS="([a-z -]+)"')
    fast, rest = re.search(r"PARTS \?= (.*)", makefile)[1], re.search(r'PARTS="\$\(PARTS\) (.*)"', makefile)[1]
    assert named.findall(text_of(".ci/run")) == [rest]
    steps = " ".join(step.get("run", "") for job in WORKFLOW["jobs"].values() for step in job["steps"])
    parts = " ".join([*WORKFLOW["jobs"]["tests"]["strategy"]["matrix"]["part"], *named.findall(steps)])
    assert sorted(parts.split()) == sorted(f"{fast} {rest}".split())


@pytest.mark.parametrize("job", WORKFLOW["jobs"])
def test_workflow_steps_are_valid_bash(job):
    script = subprocess.check_output([sys.executable, ROOT / "build" / "ci" / "steps", job], text=True)
    assert "make test" in script or "build/ci/jobgen" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


# regression: with CDPATH exported, image_build.job built another clone
def test_scripts_change_to_own_clone_despite_cdpath(tmp_path):
    """Run each script up to its `cd`, in a clone beside another one that CDPATH names."""
    files = [path for name in ("build", "containers") for path in (ROOT / name).rglob("*") if path.is_file()]
    scripts = [path for path in files if "__pycache__" not in path.parts]
    changes = re.compile(r"^(\w+=\$\()?cd .*\bdirname\b.*$", re.MULTILINE)
    found = 0
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        if not (change := changes.search(text)):
            continue
        found += 1
        place = script.relative_to(ROOT)
        for clone in ("ours", "theirs"):
            (tmp_path / clone / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / clone / place).write_text(f'{text[: change.end()]}\necho "$PWD ${{here:-}} ${{home:-}}"\n')
        env = os.environ | {"CDPATH": f"{tmp_path}/theirs", "SCRATCH": str(tmp_path)}
        said = subprocess.check_output(["bash", place], cwd=tmp_path / "ours", env=env, text=True)
        assert "/theirs" not in said, place
    assert found
