"""Slugs of all errors and warnings: each is defined, used and documented."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobgen.cli import main
from messages import assert_error, assert_names
from slipway.base.contract import EXIT_CONFIG, EXIT_STOPPED, EXIT_USAGE
from slipway.base.errors import RunError
from slipway.base.slugs import EXIT_FAILED, SLUGS
from slipway.base.stop import Reason

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for path in sorted((ROOT / "src").rglob("*.py")) if path.name != "slugs.py"]
SCRIPTS = [path for path in sorted((ROOT / "jobscripts").rglob("*")) if path.suffix in {".bash", ".job", ".sh", ".pbs"}]
HELPERS = sorted((ROOT / "jobscripts" / "lib").glob("*.py"))
ENDS = "die|require|abort_before_launch|write_cause"
"""Functions of the library that end a job with a slug's exit code."""
IN_BASH = re.compile(rf"""(?m)^(?!\s*#)[^\n]*?\b(?:{ENDS}|error|warn) ([a-z][a-z0-9-]*)(?= ["\\']| file| folder|$)""")
KINDS = {"error", "warning"}
PRINTED = re.compile(r"(?:error|warning)\[([a-z0-9-]+)\]")


def raising(node: ast.AST) -> bool:
    """Return whether a node creates one of our errors or warnings: a call that takes a slug."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    kinds = "Slipway|Trainer|Config|Usage|Nodes|Session|Tracker|StateMismatch|Export|Jobgen|Argument"
    return bool(re.fullmatch(rf"(?:{kinds})Error|warn|add_label|need", name))


def slugs_of_calls(path: Path) -> Iterator[str]:
    """Yield the slug of each such call, unless it is computed."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if raising(node) and isinstance(node, ast.Call):
            words = [word.value for word in node.args[:2] if isinstance(word, ast.Constant)]
            texts = [word for word in words if re.fullmatch("[a-z0-9-]+", str(word)) and word not in KINDS]
            yield from texts[:1]


USED = {
    *(slug for path in SOURCES for slug in slugs_of_calls(path)),
    *(kind.name for kind in RunError.kinds.values() if kind.name),
    *(slug for path in [*SOURCES, *SCRIPTS, *HELPERS] for slug in PRINTED.findall(path.read_text(encoding="utf-8"))),
    *(slug for path in SCRIPTS for slug in IN_BASH.findall(path.read_text(encoding="utf-8"))),
    *(reason.word for reason in Reason if reason),
    "complete",
}


def test_every_used_slug_is_defined_and_every_defined_used():
    known = set(re.findall(r'"([a-z0-9-]+)"', (ROOT / "src/slipway/base/errors.py").read_text(encoding="utf-8")))
    assert USED - set(SLUGS) == set()
    assert set(SLUGS) - USED - known - {"bad-arguments"} == set()


def test_every_slug_entry_has_valid_exit_code_and_texts():
    for slug, entry in SLUGS.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
        assert entry.exit_code in {None, 0, EXIT_FAILED, EXIT_USAGE, EXIT_STOPPED, EXIT_CONFIG}
        for text in (entry.when, entry.remedy):
            assert text.endswith(".")
            assert text.isprintable()


def test_every_slug_has_section_in_errors_page():
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^### (.*)$", page) == list(SLUGS)


def test_job_script_library_has_exit_code_of_each_fatal_slug():
    text = (ROOT / "jobscripts/lib/errors.bash").read_text(encoding="utf-8")
    codes = {slug: int(code) for slug, code in re.findall(r"(?m)^    \[(.*)\]=(\d+)$", text)}
    assert codes == {slug: SLUGS[slug].exit_code for slug in codes}
    ending = {
        slug
        for path in SCRIPTS
        for slug in re.findall(rf"\b(?:{ENDS}) ([a-z][a-z0-9-]+)", path.read_text(encoding="utf-8"))
        if slug in SLUGS
    }
    assert ending == set(codes)


class TestExplain:
    def test_explain_prints_entry_of_slug(self, capsys):
        assert main(["explain", "no-gpu"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert_names(said, "no-gpu", "78", SLUGS["no-gpu"].when, SLUGS["no-gpu"].remedy)

    def test_explain_without_slug_lists_all_slugs(self, capsys):
        assert main(["explain"]) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SLUGS)

    def test_explain_prints_entry_as_json(self, capsys):
        assert main(["explain", "--json", "no-gpu"]) == 0
        entry = SLUGS["no-gpu"]
        assert json.loads(capsys.readouterr().out) == [
            {"slug": "no-gpu", "exit_code": 78, "when": entry.when, "remedy": entry.remedy}
        ]

    @pytest.mark.parametrize(
        ("word", "values"), [("WandB", ["unknown-tracker", "tracker-not-installed"]), ("no-gp", ["no-gp", "no-gpu"])]
    )
    def test_explain_unknown_slug_suggests_similar_and_related_slugs(self, capsys, word, values):
        assert main(["explain", word]) == EXIT_USAGE
        assert_error(capsys.readouterr().err, "bad-flag-value", *values)

    def test_unknown_option_gives_bad_arguments_error(self, capsys):
        with pytest.raises(SystemExit) as ended:
            main(["explain", "--frob"])
        assert ended.value.code == EXIT_USAGE
        assert_error(capsys.readouterr().err, "bad-arguments", "--frob")
