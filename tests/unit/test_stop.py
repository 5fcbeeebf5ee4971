"""Stop requests, by signals and by the file STOP."""

import os
import signal
import subprocess
import sys

import pytest

from slipway.base.stop import SIGNALS, Reason, StopRequest, read_stop_file


@pytest.fixture
def request_to_stop():
    """Return a StopRequest that listens."""
    request = StopRequest()
    request.listen()
    yield request
    request.close()


def test_close_restores_previous_signal_handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    request = StopRequest()
    request.listen()
    assert {number: signal.getsignal(number) for number in SIGNALS} != before
    for _ in range(2):
        request.close()
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([signal.SIGUSR1], Reason.TIME_LIMIT),
        ([signal.SIGTERM], Reason.SIGNAL),
        ([signal.SIGINT], Reason.SIGNAL),
        ([signal.SIGTERM] * 5, Reason.SIGNAL),
        ([signal.SIGUSR1, signal.SIGTERM], Reason.SIGNAL),
        ([signal.SIGTERM, signal.SIGUSR1], Reason.SIGNAL),
    ],
)
def test_reason_of_several_signals_is_largest(request_to_stop, numbers, reason):
    assert request_to_stop.reason == Reason.NONE
    for number in numbers:
        os.kill(os.getpid(), number)
    assert request_to_stop.reason == reason


def test_helper_process_ignores_all_stop_signals():
    code = (
        "import os; from slipway.base.stop import SIGNALS, ignore_signals; ignore_signals();"
        "[os.kill(os.getpid(), number) for number in SIGNALS]; print('alive')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "alive\n"


def test_signal_of_each_stop_reason_maps_back_to_reason():
    for reason in SIGNALS.values():
        assert SIGNALS[reason.signal] == reason


def test_stop_reason_words_match_contract():
    assert [reason.word for reason in Reason] == ["none", "launcher", "time-limit", "user", "signal"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe\x00", (Reason.USER, "")),
        (b"time-limit", (Reason.TIME_LIMIT, "")),
        (b" time-limit\n", (Reason.TIME_LIMIT, "")),
        (b"time-limit 4711/2\n", (Reason.TIME_LIMIT, "4711/2")),
        (b"user\n", (Reason.USER, "")),
        (b"", (Reason.USER, "")),
        (b"please stop", (Reason.USER, "")),
        (b"time-limits", (Reason.USER, "")),
    ],
)
def test_stop_file_word_is_reason_and_unknown_means_user(tmp_path, content, reason):
    (tmp_path / "STOP").write_bytes(content)
    assert read_stop_file(tmp_path) == reason


def test_missing_stop_file_or_folder_means_no_stop(tmp_path):
    assert read_stop_file(tmp_path) == (Reason.NONE, "")
    assert read_stop_file(tmp_path / "gone") == (Reason.NONE, "")


ANSWER = "\ninterrupted: saving after this step; the third interrupt ends the process at once\n"


@pytest.mark.parametrize(
    ("line", "answer"),
    [("", ANSWER), ("request.answers = False", ""), ("os.close(2)", "")],
    ids=["root", "other", "closed"],
)
def test_first_sigint_prints_message_and_third_kills_process(line, answer):
    """As with Python's own handler: the first two count as requests."""
    code = "import os, signal; from slipway.base.stop import StopRequest; request = StopRequest(); request.listen()\n"
    code += f"{line}\n"
    code += "for _ in range(3): os.kill(os.getpid(), signal.SIGINT)\nprint('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", answer)
