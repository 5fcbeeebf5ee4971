"""Permutations from a table, and those that are computed in blocks."""

import itertools
from collections import Counter

import pytest
import torch

from slipway.rng.permutation import BLOCK, MAX_LENGTH, MAX_TABLE, ORDER_VERSION, Permutation

SIZES = [0, 1, 2, 3, 5, 10, 100, 999, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17]


@pytest.fixture(params=[0, MAX_TABLE], ids=["blocks", "table"])
def largest_table(request, monkeypatch):
    """Let permutations of the test be computed in blocks, or from tables."""
    monkeypatch.setattr("slipway.rng.permutation.MAX_TABLE", request.param)


@pytest.mark.parametrize("length", SIZES)
@pytest.mark.usefixtures("largest_table")
def test_each_number_occurs_once_by_index_slice_and_iteration(length):
    whole = Permutation(length, key=7).between(0, length)
    assert whole.dtype == torch.int64
    assert sorted(whole.tolist()) == list(range(length))
    permutation = Permutation(length, key=7)
    assert len(permutation) == length
    assert list(permutation) == permutation[:] == whole.tolist()
    for begin, end in [(0, 3), (length - 5, length), (BLOCK - 2, BLOCK + 2), (5, 5), (length, length + 9), (7, 2)]:
        assert permutation[begin:end] == whole.tolist()[begin:end], (begin, end)
    for place in {0, length // 2, length - 1, -1, -length} if length else ():
        assert permutation[place] == whole[place]


def test_invalid_indices_and_lengths_are_refused():
    permutation = Permutation(10, key=1)
    for place in (10, -11):
        with pytest.raises(IndexError, match=rf"{place}\b.*\b10\b"):
            permutation[place]
    with pytest.raises(ValueError, match="slices of step 1"):
        permutation[::2]
    for length in (-1, MAX_LENGTH + 1):
        with pytest.raises(ValueError, match=r"0 to 2\*\*62"):
            Permutation(length, key=1)


def test_largest_permutation_has_valid_distinct_numbers():
    permutation = Permutation(MAX_LENGTH, key=1)
    found = permutation.between(MAX_LENGTH - 1000, MAX_LENGTH)
    assert len(set(found.tolist())) == 1000
    assert 0 <= found.min() < found.max() < MAX_LENGTH


def test_permutations_match_recorded_values():
    """If this fails, ORDER_VERSION needs a new number: checkpoints taken within an epoch cannot be resumed exactly."""
    assert ORDER_VERSION == 4
    assert Permutation(12, key=3)[:] == [10, 9, 1, 6, 4, 11, 3, 7, 2, 0, 8, 5]
    assert Permutation(10**8, key=3)[50_000_000:50_000_004] == [12188513, 6440902, 34304649, 62900442]


@pytest.mark.parametrize("length", [1 << 10, 1000, 10_007])
@pytest.mark.usefixtures("largest_table")
def test_numbers_are_uniform_over_positions(length):
    """In 64 cells of a table of position and number, and thus of the distance to the previous number."""
    cells, keys = 8, 40
    places, steps = torch.zeros(cells * cells), torch.zeros(cells)
    for key in range(keys):
        numbers = Permutation(length, key=key).between(0, length)
        cell = torch.arange(length) * cells // length * cells + numbers * cells // length
        places += torch.bincount(cell, minlength=cells * cells)
        step = numbers.diff() % length
        steps += torch.bincount(step * cells // length, minlength=cells)
    expected = keys * length / cells**2
    assert ((places - expected) ** 2 / expected).sum() < 113  # chi-squared of 63 degrees: 1 in 10,000 is above
    expected = keys * (length - 1) / cells
    assert ((steps - expected) ** 2 / expected).sum() < 33  # of 8


@pytest.mark.usefixtures("largest_table")
def test_keys_give_all_permutations_equally_often():
    """Four numbers have 24 permutations: all occur about equally often."""
    found = Counter(tuple(Permutation(4, key=key)) for key in range(2400))
    assert set(found) == set(itertools.permutations(range(4)))
    chi_squared = sum((count - 100) ** 2 / 100 for count in found.values())
    assert chi_squared < 57  # of 23 degrees, 1 in 10,000 is above
