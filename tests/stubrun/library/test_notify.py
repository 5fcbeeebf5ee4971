"""Records of a job's times and end: goodput.jsonl, and the program in SLIPWAY_NOTIFY."""

import json

import pytest

from bash_library import assert_ended
from messages import numbers


def test_launch_start_and_attempt_end_are_recorded_in_goodput(bash, place):
    out = bash(
        "spare_nodes=(n3); began_at=12.5; record_launch_start; record_attempt_end; echo $began_at; epoch_seconds"
    )[1].split()
    lines = [json.loads(line) for line in (place / "run" / "goodput.jsonl").read_text().splitlines()]
    assert lines == [{"attempt": 2, "began": 12.5, "nodes": 2, "spares": 1}, {"attempt": 2, "ended": float(out[0])}]
    assert 0 <= float(out[1]) - float(out[0]) < 60


def test_failed_goodput_write_is_ignored(bash):
    assert bash("RUN_DIR=/nowhere; append_goodput '%s' 1; echo on")[1] == "on\n"


TELL = """
printf '#!/bin/sh\\n%s\\n' "$1" >told
chmod +x told
SLIPWAY_NOTIFY=$PWD/told
check_notify
log hello
notify_of_end 3
cat run/logs/2/notify.log"""


def test_notify_program_receives_end_event(bash, place):
    code, out, err = bash(TELL, 'printf "%s|" "$@"')
    assert (code, err) == (0, "x.job: hello\n")
    event, run, message, end = out.split("|")
    assert (event, run, end, numbers(message), message.split()[-1]) == ("end", f"{place}/run", "", [3], "hello")


# regression: TMPDIR was the folder that the job removes before it reports its end
@pytest.mark.parametrize(("folder", "found"), [("gone", "none"), ("disk", "{}/disk")])
def test_notify_program_gets_existing_tmpdir(bash, place, folder, found):
    out = bash(f"export TMPDIR=$PWD/{folder}; {TELL}", 'echo "${TMPDIR-none}" && rm "$(mktemp)"').out
    assert out == found.replace("{}", str(place)) + "\n"


@pytest.mark.parametrize(
    ("code", "slug"),
    [("check_notify; notify a b; notify_of_end 3", ""), ("SLIPWAY_NOTIFY=$PWD/run; check_notify", "no-notify-program")],
)
def test_missing_notify_program_is_refused_if_set(bash, place, code, slug):
    assert_ended(bash(code), slug, f"SLIPWAY_NOTIFY={place}/run ")
