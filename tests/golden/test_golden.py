"""Every description at every site, against the literal text: a change of a template is seen in review, line by line.

`SLIPWAY_WRITE_GOLDEN=1 pytest tests/golden` writes the text anew.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from jobgen.cli import main
from jobgen.errors import JobgenError
from jobgen.files import differing, script_of

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = Path(__file__).parent / "expected"
SPECS = sorted(path.stem for path in (ROOT / "jobscripts" / "specs").glob("*.toml"))
SITES = sorted(path.stem for path in (ROOT / "jobscripts" / "sites").glob("*.toml"))
COMMITTED = sorted(path for path in (ROOT / "jobscripts").glob("*.*") if path.suffix in {".job", ".pbs", ".sh"})
LONGEST = 110
"""Lines that a person reads in a minute or two."""


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("spec", SPECS)
def test_the_text_is_the_expected_one(spec, site):
    try:
        text = script_of(spec, site, [], output=None).text
    except JobgenError as error:
        text = f"{error}\n"
    path = EXPECTED / f"{spec}@{site}"
    if os.environ.get("SLIPWAY_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_no_expected_text_is_left_over():
    assert {path.name for path in EXPECTED.iterdir()} == {f"{spec}@{site}" for spec in SPECS for site in SITES}


def test_the_committed_scripts_are_what_their_heads_say(capsys):
    assert differing(ROOT / "jobscripts", parse=_parse) == []
    assert main(["check"]) == 0
    assert capsys.readouterr() == ("", "")


def _parse(words):
    from jobgen.cli import _parser  # noqa: PLC0415 -- the one place that knows the options

    return _parser().parse_args(words)


def test_an_edited_script_is_found(tmp_path, capsys):
    script = tmp_path / "ddp.job"
    script.write_text((ROOT / "jobscripts" / "ddp.job").read_text().replace("--nodes=2", "--nodes=3"))
    assert main(["check", str(tmp_path)]) == 1
    assert f"{script} is not what its files give; make it again: jobgen render" in capsys.readouterr().err


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_a_committed_script_can_be_read_and_run(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST
    assert lines[0] == "#!/usr/bin/env bash"
    assert os.access(path, os.X_OK)
    assert not [
        line
        for line in lines
        if re.search(r"(?<!-)\beval ", line) or "<<" in line.replace("<<<", "") or "| head" in line
    ]
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize("path", [path for path in COMMITTED if path.suffix == ".job"], ids=lambda path: path.name)
def test_every_directive_has_its_reason(path):
    directives = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH")]
    assert len(directives) >= 6
    assert [line for line in directives if " # " not in line] == []


@pytest.mark.parametrize("path", [path for path in COMMITTED if path.suffix == ".pbs"], ids=lambda path: path.name)
def test_every_directive_of_pbs_has_its_reason_above(path):
    lines = path.read_text().splitlines()
    directives = [number for number, line in enumerate(lines) if line.startswith("#PBS")]
    assert len(directives) >= 3
    assert [lines[number] for number in directives if not lines[number - 1].startswith("# ")] == []
