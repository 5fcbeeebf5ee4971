"""Errors of slipway: facts, which travel between ranks, and what this program's flags have to do with them."""

import errno
import json
from pathlib import Path

import pytest

from slipway.errors import (
    FolderHoldsRunError,
    FolderInUseError,
    FolderNotWritableError,
    LostFolderError,
    NotSavedError,
    RunError,
    SlipwayError,
    from_json,
    is_retryable,
    to_json,
)
from trainer.errors import REMEDIES, ConfigError, TrainerError, UsageError, explain

IN_USE = FolderInUseError(folder=Path("runs/a"), pid=7, host="node1", job="none", since="noon")


@pytest.mark.parametrize(
    "error",
    [
        IN_USE,
        FolderNotWritableError(folder="runs/a", reason="Read-only file system"),
        LostFolderError(lock="runs/a/lock"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_of_the_same_class_and_says_the_same_on_another_rank(error):
    found = from_json(json.loads(json.dumps(to_json(error))))
    assert type(found) is type(error)
    assert (str(found), found.exit_code, found.retryable) == (str(error), error.exit_code, error.retryable)
    assert explain(found) == explain(error)


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (ConfigError("no such model"), 78, False),
        (UsageError("no such flag"), 2, False),
        (TrainerError("the loss is nan"), 1, False),
        (OSError(errno.ENOSPC, "No space left on device"), 1, False),
        (OSError(errno.EIO, "Input/output error"), 1, True),
    ],
    ids=repr,
)
def test_of_any_other_the_text_the_code_and_whether_to_retry_arrive(error, code, retryable):
    found = from_json(json.loads(json.dumps(to_json(error))))
    assert (str(found), found.exit_code, is_retryable(found)) == (str(error), code, retryable)


def test_whether_to_retry_a_save_that_failed_arrives_too():
    error = NotSavedError(reason="Input/output error", before="There is none before it.")
    error.retryable = True
    assert from_json(json.loads(json.dumps(to_json(error)))).retryable is True


def test_every_class_can_be_made_again():
    assert {FolderInUseError, FolderNotWritableError, FolderHoldsRunError, LostFolderError} <= set(
        RunError.kinds.values()
    )
    assert all(kind.text for kind in RunError.kinds.values() if not kind.__subclasses__())


def test_the_remedy_names_flags_and_the_error_none():
    assert explain(IN_USE) == f"{IN_USE} Use another --output-dir, or stop that run."
    assert explain(SlipwayError("as it is")) == "as it is"
    assert [kind for kind in RunError.kinds.values() if "--" in kind.text] == []
    assert set(REMEDIES) <= set(RunError.kinds.values())
