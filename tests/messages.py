"""Assertions on programs' errors and warnings, by slug and by the values that they contain, never by sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from slipway.base.errors import SlipwayError

MESSAGE = re.compile(r"(?m)\b(error|warning)\[([a-z0-9-]+)\]: (.*)$")


class Message(NamedTuple):
    """An error or warning in an output."""

    kind: str
    slug: str
    text: str


def messages(output: str) -> list[Message]:
    """Return the errors and warnings of an output, or of caplog.text, in order."""
    return [Message(*found) for found in MESSAGE.findall(output)]


def slugs(output: str) -> list[str]:
    """Return the slugs of an output's errors and warnings, in order."""
    return [message.slug for message in messages(output)]


def assert_error(output: str, slug: str, *values: object) -> None:
    """Assert that the output has exactly one error, with this slug and these values, and no traceback."""
    found = [message for message in messages(output) if message.kind == "error"]
    assert [message.slug for message in found] == [slug], output
    assert_names(found[0].text, *values)
    assert "Traceback" not in output, output


def assert_warning(output: str, slug: str, *values: object) -> None:
    """Assert that the output has a warning with this slug that contains these values."""
    found = [message.text for message in messages(output) if message[:2] == ("warning", slug)]
    assert any(all(str(value) in text for value in values) for text in found), (slug, values, output)


def assert_names(text: str, *values: object) -> None:
    """Assert that a text contains each of the values: paths, numbers, names."""
    for value in values:
        assert str(value) in text, (value, text)


def numbers(text: str) -> list[int]:
    """Return the integers in a text, in order."""
    return [int(number) for number in re.findall(r"\d+", text)]


@contextmanager
def refused(slug: str, *values: object, code: int | None = None) -> Iterator[pytest.ExceptionInfo[SlipwayError]]:
    """Assert that the body raises an error with this slug that contains these values.

    Args:
        slug: the error's slug.
        values: values that its text must contain.
        code: its exit code; None accepts any.
    """
    with pytest.raises(SlipwayError) as caught:
        yield caught
    assert caught.value.slug == slug, caught.value
    assert code in {None, caught.value.exit_code}, caught.value.exit_code
    assert_names(str(caught.value), *values)
