"""Tests on the device that `make gpu` has found: a GPU, or without one the CPU, in small sizes."""

from pathlib import Path

import pytest
import torch

import support

support.FORKS = False  # a process that uses a GPU cannot be forked

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Mark every test of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> str:
    """Return cuda, or cpu without a GPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def record(record_property):
    """Return a function that puts values, by name, into the test's row of the table of `make gpu`."""

    def put(**values: object) -> None:
        for name, value in values.items():
            record_property(name, value)

    return put
