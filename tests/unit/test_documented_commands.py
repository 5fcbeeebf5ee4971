"""Commands of README.md and docs/: each has a test that runs it, or a reason for having none (tests/readme.py)."""

import re

import pytest

from readme import (
    ALL,
    ASKED,
    COMMANDS,
    DRY_RUNS,
    ELSEWHERE,
    HERE,
    LEAVES,
    NEEDED,
    NO_COMMANDS,
    NOWHERE,
    ON_CLUSTER,
    ON_NODE,
    PROGRAMS,
    ROOT,
    SCRIPT,
    SESSION,
    commands_of,
    program,
)


def test_lines_that_a_plain_script_lacks_are_marked():
    ranks = r"\bgc|\bdist\b|[sS]ampler|DistributedData|number"
    for text, pattern, mark in ((SCRIPT, ranks, "# +"), (SESSION, r"[sS]ession|Sampler", "# S")):
        lines = [line for line in text.splitlines() if re.search(pattern, line)]
        # an f-string of a marked block stands below its mark
        assert [line for line in lines if mark not in line and not line.lstrip().startswith("print(")] == []
        assert len(lines) > 5


def test_every_documented_command_is_classified():
    classes = (HERE, ON_CLUSTER, ON_NODE, DRY_RUNS, ASKED, ELSEWHERE, NOWHERE)
    assert sorted(COMMANDS) == sorted(command for group in classes for command in group)
    assert len(HERE) > 20
    assert len(ON_CLUSTER) > 15


def test_commands_run_here_start_with_known_program():
    assert {program(command) for command in HERE} == PROGRAMS  # add another code span to NO_COMMANDS


@pytest.mark.parametrize("command", ELSEWHERE)
def test_command_run_elsewhere_is_in_given_file(command):
    path, part = ELSEWHERE[command]
    assert part in (ROOT / path).read_text(encoding="utf-8"), f"{path} does not contain {part!r}"


def test_tables_list_only_documented_commands():
    assert {*ELSEWHERE, *NOWHERE, *NO_COMMANDS, *LEAVES, *NEEDED} - {*ALL} == set()


def test_commands_are_extracted_from_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Run `make coffee VARIANT=black`, or `FOO=1\nsbatch x.job`; see `docs/`, `jobgen submit`.\n"
        "1. `trainer --help` and\n\n   ```bash\n   a file\n   ```\n\n"
        "```console\n$ jobgen check   # why\nsaid\n```\n| a | `time ls \\| wc -l` |\n"
    )
    assert commands_of(page) == [
        "make coffee VARIANT=black",
        "FOO=1 sbatch x.job",
        "trainer --help",
        "jobgen check",
        "time ls | wc -l",
    ]
