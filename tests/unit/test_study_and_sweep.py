"""Common parts of jobgen study and jobgen sweep: folders of runs that are submitted together."""

import json
from pathlib import Path

import pytest

from jobgen.cli import main
from messages import assert_error

VARIED = {"study": ["--ranks", "1,2", "--cpus", "1"], "sweep": ["--set", "optim.lr=0.1,0.01"]}
HOURS = {"study": " 3.0 ", "sweep": " 8.0 "}
"""Costs: one and two GPUs for an hour, two times four GPUs."""


def submit(capsys, command, *words, spec="ddp", code=0):
    given = [command, spec, "--site", "example", "--output", "runs", *VARIED[command], *words]
    assert main(given) == code
    return capsys.readouterr()


def refuses(capsys, command, slug, *values, words=(), code=78, **job):
    """Assert that nothing is submitted and that this error states the reason."""
    assert_error(submit(capsys, command, *words, code=code, **job).err, slug, *values)


@pytest.fixture(params=VARIED)
def command(request):
    return request.param


def test_dry_run_fails_as_submission_would(login_node, capsys, monkeypatch, command):
    monkeypatch.setenv("SLIPWAY_IMAGE", "missing")
    for dry in ([], ["--dry-run"]):
        refuses(capsys, command, "no-image", "SLIPWAY_IMAGE: missing ", words=dry)
    assert (login_node / "number").read_text() == "100"


def test_cost_over_limit_requires_confirmation(login_node, capsys, command):
    values = (HOURS[command], "--limit 1", "--yes")
    refuses(capsys, command, "not-confirmed", *values, words=["--limit", "1"], code=2)
    assert not Path("runs").exists()
    submit(capsys, command, "--limit", "1", "--yes")
    assert int((login_node / "number").read_text()) > 100


@pytest.mark.parametrize("spec", ["image_build", "selftest"])
@pytest.mark.usefixtures("login_node")
def test_spec_without_training_is_refused(capsys, command, spec):
    refuses(capsys, command, "nothing-to-vary", f"{spec} ", spec=spec, code=2)


@pytest.mark.parametrize("made", ["file", "folder", "link"])
def test_output_folder_with_other_content_is_refused(login_node, capsys, command, made):
    if made == "file":
        Path("runs").write_text("mine")
    elif made == "folder":
        Path("runs", "mine").mkdir(parents=True)
    else:
        Path("runs").symlink_to("configs")
    refuses(capsys, command, "file-exists", "runs ", f"{command}.json", "--output")
    assert (login_node / "number").read_text() == "100"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 2, "kind": "COMMAND"}',
        '{"schema": 1, "kind": "another"}',
        '{"schema": 1, "kind": "COMMAND", "points": [{"nam": 1}], "trials": [{"nam": 1}]}',
    ],
)
@pytest.mark.usefixtures("login_node")
def test_invalid_record_file_is_refused(capsys, command, text):
    path = Path("runs", f"{command}.json")
    path.parent.mkdir()
    path.write_text(text.replace("COMMAND", command))
    refuses(capsys, command, "bad-record", path, f"`jobgen {command}`")


@pytest.mark.usefixtures("login_node")
def test_run_outside_of_output_folder_is_refused(capsys, command):
    submit(capsys, command)
    path = Path("runs", f"{command}.json")
    record = json.loads(path.read_text())
    record["points" if command == "study" else "trials"][0]["run"] = "../000"
    path.write_text(json.dumps(record))
    refuses(capsys, command, "bad-record", path, "'../000'")
