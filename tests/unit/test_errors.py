"""Errors of slipway: their facts, transport between ranks and processes, and printed form."""

import errno
import json
import pickle
import string
from functools import partial
from pathlib import Path

import pytest

from messages import Message, assert_error, messages
from slipway.base.errors import (
    FolderInUseError,
    LostFolderError,
    NotSavedError,
    RunError,
    SessionError,
    SlipwayError,
    add_label,
    error_line,
    explain,
    from_json,
    is_retryable,
    reason_of,
    slug_of,
    to_json,
)
from slipway.base.slugs import SLUGS
from trainer.config.errors import ConfigError, TrainerError

IN_USE = FolderInUseError(folder=Path("runs/a"), pid=7, host="node1", job="none", since="noon")


def fields(kind):
    """Return the names of the facts of a RunError class."""
    return [name for _, name, *_ in string.Formatter().parse(kind.template) if name]


def made(kind):
    """Return an error of ``kind`` in which each fact holds its own name."""
    if issubclass(kind, SessionError):
        return kind("unknown-tracker", "no tracker 'x'")
    return kind(**{name: f"<{name}>" for name in fields(kind)})


KINDS = [kind for kind in RunError.kinds.values() if kind.template]
OTHERS = [
    (SlipwayError("lost-peer", "rank 3"), "lost-peer", 1, False),
    (ConfigError("unknown-name", "model 'x'"), "unknown-name", 78, False),
    (ConfigError("unknown-flag", "--frob"), "unknown-flag", 2, False),
    (TrainerError("diverged", "loss nan"), "diverged", 1, False),
    (OSError(errno.ENOSPC, "No space left on device"), "disk-full", 1, False),
    (OSError(errno.EIO, "Input/output error"), "unexpected-error", 1, True),
]


def carried(error):
    """Return ``error`` as another rank receives it."""
    return from_json(json.loads(json.dumps(to_json(error))))


def facts_of(error):
    """Return everything that a program decides by."""
    return slug_of(error), str(error), explain(error), error.exit_code, is_retryable(error)


@pytest.mark.parametrize("kind", KINDS)
def test_run_error_keeps_class_and_facts_on_another_rank(kind):
    error = made(kind)
    found = carried(error)
    assert type(found) is type(error)
    assert facts_of(found) == facts_of(error)


@pytest.mark.parametrize(("error", "slug", "code", "retryable"), OTHERS, ids=repr)
def test_other_error_keeps_text_exit_code_and_retryability(error, slug, code, retryable):
    found = carried(error)
    assert (slug_of(found), str(found)) == (slug, str(error))
    assert (found.exit_code, is_retryable(found)) == (code, retryable)


def test_retryability_of_failed_save_reaches_other_ranks():
    error = NotSavedError(reason="Input/output error", before="There is none before it.")
    error.retryable = True
    assert carried(error).retryable is True


@pytest.mark.parametrize("make", [*(partial(made, kind) for kind in KINDS), lambda: ConfigError("no-gpu", "on cpu")])
def test_errors_survive_pickling_unchanged(make):
    error = make()
    error.exit_code, error.retryable, error.raised_on_all_ranks = 75, True, True
    found = pickle.loads(pickle.dumps(error))  # noqa: S301 -- our own
    assert type(found) is type(error)
    assert (facts_of(found), found.args, vars(found)) == (facts_of(error), error.args, vars(error))


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_contains_its_facts_and_known_slug(kind):
    error = made(kind)
    assert SLUGS[error.slug].exit_code == error.exit_code
    assert [name for name in fields(kind) if f"<{name}>" not in str(error)] in ([], ["message"])


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_is_one_printable_line(kind):
    error = made(kind)
    assert str(error).isprintable()
    hostile = "a\nb\x1b[31m\u2028c\udcff"
    error = kind(**dict.fromkeys(error.facts, hostile)) if kind.name else kind(error.slug, hostile)
    for text in (error_line(error), reason_of(error)):
        assert text.isprintable()
    assert_error(f"trainer: {error_line(error)}", error.slug)


def test_remedy_comes_from_slug_table_and_templates_have_no_flags():
    assert explain(IN_USE) == f"{IN_USE} {SLUGS['folder-in-use'].remedy}"
    assert explain(SlipwayError("lost-peer", "as it is")) == "as it is"
    assert [kind for kind in RunError.kinds.values() if "--" in kind.template] == []


def test_printed_error_has_kind_slug_and_message():
    assert messages(f"trainer: {error_line(IN_USE)}") == [Message("error", "folder-in-use", explain(IN_USE))]
    assert messages(add_label("warning", "node-lost", "node\n7")) == [Message("warning", "node-lost", "node 7")]
    assert reason_of(LostFolderError(lock="a/lock")).partition(": ")[0] == "lost-folder"
