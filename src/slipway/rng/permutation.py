"""A random order of any number of samples, of which each part is computed when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import overload

import torch
from torch import Tensor

from slipway.rng.seeding import FIRST, INCREMENT, SECOND, derive

BLOCK = 1 << 15
"""Places that are computed at a time. A batch by itself takes several times as long for each of them; more would be
divided among threads by torch, which costs more than it gives."""
ROUNDS = 6
"""Of the cipher. Orders of very few samples are biased: of three or four with four rounds, of five or six with six."""
LARGEST = 1 << 62
LARGE = 1 << 20
"""Samples above which the order of an epoch is such a permutation; fewer are soon shuffled in a table."""

_INCREMENT, _FIRST, _SECOND = (word - (1 << 64) for word in (INCREMENT, FIRST, SECOND))
"""Words of SplitMix64 as int64."""


class Permutation(Sequence[int]):
    """A permutation of 0 to n - 1 that a key selects; nothing of it is kept but the block in use.

    It is a Feistel network on pairs of digits of mixed radix, whose product is little more than n; a result that is not
    below n is enciphered again until it is. Source: J. Black, P. Rogaway, Ciphers with arbitrary finite domains,
    CT-RSA 2002.
    """

    def __init__(self, length: int, *, key: int) -> None:
        """Select one of ``length`` numbers.

        Raises:
            ValueError: for a negative length, or one above 2**62.
        """
        if not 0 <= length <= LARGEST:
            raise ValueError(f"a permutation of {length} numbers: there must be 0 to 2**62")
        self._length = length
        self._left = max(1, math.isqrt(max(0, length - 1)) + 1)
        self._right = max(1, -(-length // self._left))
        self._keys = [derive(key, number) for number in range(ROUNDS)]
        self._number, self._block = -1, torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        """Return how many numbers it permutes."""
        return self._length

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        """Return the number at ``place``, or those of a slice."""
        if isinstance(place, slice):
            begin, end, step = place.indices(self._length)
            if step != 1:
                raise ValueError("a permutation gives slices of step 1")
            return self.between(begin, end).tolist()
        if not -self._length <= place < self._length:
            raise IndexError(f"{place} of {self._length} numbers")
        place %= self._length
        return int(self.between(place, place + 1))

    def __iter__(self) -> Iterator[int]:
        """Yield all numbers."""
        for begin in range(0, self._length, BLOCK):
            yield from self[begin : begin + BLOCK]

    def between(self, begin: int, end: int) -> Tensor:
        """Return the numbers at the places from ``begin`` to before ``end``: int64 [end - begin]."""
        end = min(end, self._length)
        parts = [
            self._at_block(number)[max(0, begin - number * BLOCK) : end - number * BLOCK]
            for number in range(begin // BLOCK, -(-end // BLOCK))
        ]
        return parts[0] if len(parts) == 1 else torch.cat([*parts, self._block[:0]])

    def _at_block(self, number: int) -> Tensor:
        if number != self._number:
            first = number * BLOCK
            self._block = self._decided(torch.arange(first, min(first + BLOCK, self._length)))
            self._number = number
        return self._block

    def _decided(self, numbers: Tensor) -> Tensor:
        """Return what ``numbers``, int64 [n], become."""
        numbers = self._enciphered(numbers)
        while len(outside := (numbers >= self._length).nonzero()[:, 0]):
            numbers[outside] = self._enciphered(numbers[outside])
        return numbers

    def _enciphered(self, numbers: Tensor) -> Tensor:
        left = numbers.div(self._right, rounding_mode="floor")
        right = numbers - left * self._right
        for number, key in enumerate(self._keys):
            if number % 2:
                _add(right, hashed(left, key), modulus=self._right)
            else:
                _add(left, hashed(right, key), modulus=self._left)
        return left * self._right + right


def hashed(numbers: Tensor, key: int) -> Tensor:
    """Return 32 bits that depend on each of ``numbers``, int64, and on ``key``: int64 of the same shape."""
    state = numbers * _INCREMENT
    state += key
    state ^= (state >> 30) & ((1 << 34) - 1)  # torch shifts the sign in
    state *= _FIRST
    state ^= (state >> 27) & ((1 << 37) - 1)
    state *= _SECOND
    state >>= 32
    state &= (1 << 32) - 1
    return state


def _add(digits: Tensor, bits: Tensor, *, modulus: int) -> None:
    """Add to each of ``digits`` one from 0 to ``modulus`` - 1, by its 32 ``bits``."""
    bits *= modulus
    bits >>= 32
    digits += bits
    digits -= (digits >= modulus) * modulus
