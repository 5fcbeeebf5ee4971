"""Random permutation of any number of samples: a table, or for many samples computed block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import overload

import torch
from torch import Tensor

from slipway.rng.seeding import FIRST, INCREMENT, SECOND, derive

BLOCK = 1 << 15
"""Positions that are computed at once. A block of one batch takes several times as long per position. torch would
divide a larger block among threads, which costs more than it saves."""
ROUNDS = 6
"""Rounds of the cipher. For very few samples orders are biased: three or four with 4 rounds, five or six with 6."""
MAX_LENGTH = 1 << 62
MAX_TABLE = 1 << 20
"""Maximum number of samples that are shuffled in a table; this takes milliseconds."""
ORDER_VERSION = 4
"""Version of the permutations. Checkpoints record it, because only the same version resumes exactly."""

_INCREMENT, _FIRST, _SECOND = (word - (1 << 64) for word in (INCREMENT, FIRST, SECOND))
"""Constants of SplitMix64 as int64."""


class Permutation(Sequence[int]):
    """Permutation of 0 to n - 1 that a key selects.

    For n above ``MAX_TABLE`` only the current block is in memory. It is computed by a Feistel network on pairs of
    mixed-radix digits. The product of the radices is slightly more than n. A result that is not below n is enciphered
    again until it is (cycle walking). Source: J. Black, P. Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002.
    """

    def __init__(self, length: int, *, key: int) -> None:
        """Select the permutation of ``length`` numbers by ``key``.

        Raises:
            ValueError: if ``length`` is negative or above 2**62.
        """
        if not 0 <= length <= MAX_LENGTH:
            raise ValueError(f"a permutation of {length} numbers: the length must be from 0 to 2**62")
        self._length = length
        self._table: Tensor | None = None
        if length <= MAX_TABLE:
            self._table = torch.randperm(length, generator=torch.Generator().manual_seed(key))
        self._left = max(1, math.isqrt(max(0, length - 1)) + 1)
        self._right = max(1, -(-length // self._left))
        self._keys = [derive(key, number) for number in range(ROUNDS)]
        self._number, self._block = -1, torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        """Return the number of permuted numbers."""
        return self._length

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        """Return the number at the position ``place``, or the list of those in a slice of step 1."""
        if isinstance(place, slice):
            begin, end, step = place.indices(self._length)
            if step != 1:
                raise ValueError("a permutation supports only slices of step 1")
            return self.between(begin, end).tolist()
        if not -self._length <= place < self._length:
            raise IndexError(f"index {place} is out of range for {self._length} numbers")
        place %= self._length
        return int(self.between(place, place + 1))

    def __iter__(self) -> Iterator[int]:
        """Yield all numbers in permuted order."""
        for begin in range(0, self._length, BLOCK):
            yield from self[begin : begin + BLOCK]

    def between(self, begin: int, end: int) -> Tensor:
        """Return the numbers at positions ``begin`` to ``end`` - 1: int64 [end - begin]."""
        if self._table is not None:
            return self._table[begin:end]
        end = min(end, self._length)
        parts = [
            self._load_block(number)[max(0, begin - number * BLOCK) : end - number * BLOCK]
            for number in range(begin // BLOCK, -(-end // BLOCK))
        ]
        return parts[0] if len(parts) == 1 else torch.cat([*parts, self._block[:0]])

    def _load_block(self, number: int) -> Tensor:
        if number != self._number:
            first = number * BLOCK
            self._block = self._walk_cycles(torch.arange(first, min(first + BLOCK, self._length)))
            self._number = number
        return self._block

    def _walk_cycles(self, numbers: Tensor) -> Tensor:
        """Return the permuted ``numbers``, int64 [n], by cycle walking."""
        numbers = self._encipher(numbers)
        while len(outside := (numbers >= self._length).nonzero()[:, 0]):
            numbers[outside] = self._encipher(numbers[outside])
        return numbers

    def _encipher(self, numbers: Tensor) -> Tensor:
        left = numbers.div(self._right, rounding_mode="floor")
        right = numbers - left * self._right
        for number, key in enumerate(self._keys):
            if number % 2:
                _add(right, hash32(left, key), modulus=self._right)
            else:
                _add(left, hash32(right, key), modulus=self._left)
        return left * self._right + right


def hash32(numbers: Tensor, key: int) -> Tensor:
    """Return a 32-bit hash of each of ``numbers``, int64, and ``key``: int64 of the same shape."""
    state = numbers * _INCREMENT
    state += key
    state ^= (state >> 30) & ((1 << 34) - 1)  # torch's shift extends the sign
    state *= _FIRST
    state ^= (state >> 27) & ((1 << 37) - 1)
    state *= _SECOND
    state >>= 32
    state &= (1 << 32) - 1
    return state


def _add(digits: Tensor, bits: Tensor, *, modulus: int) -> None:
    """Add to each of ``digits``, modulo ``modulus`` and in place, a digit that its 32 ``bits`` select."""
    bits *= modulus
    bits >>= 32
    digits += bits
    digits -= (digits >= modulus) * modulus
