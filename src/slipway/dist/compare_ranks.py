"""Check that all ranks hold identical replicas: averaging would spread one rank's bit flip to all ranks."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from slipway.dist.communicator import Communicator
from slipway.dist.collectives import all_gather_json, count_equal

CHUNK = 1 << 22
"""Bytes that ``checksum`` processes at once; it needs 16 times as much memory."""
MAX_NAMED = 3
"""Maximum number of tensors that a message names."""


def checksum(tensor: Tensor) -> tuple[int, int]:
    """Return two sums modulo 2**64 over the bytes of a tensor of any shape and dtype: plain, and weighted by position.

    The sums are of integers, so the order of additions does not matter, and any single bit flip changes both.
    """
    data = tensor.detach().contiguous().flatten().view(torch.uint8)
    sums = torch.zeros(2, dtype=torch.int64, device=data.device)
    for begin in range(0, data.numel(), CHUNK):
        chunk = data[begin : begin + CHUNK].to(torch.int64)
        places = torch.arange(begin + 1, begin + 1 + len(chunk), device=data.device)
        sums += torch.stack([chunk.sum(), (chunk * places).sum()])
    plain, weighted = sums.tolist()
    return plain, weighted


def differences(comm: Communicator, tensors: Mapping[str, Tensor]) -> str:
    """Return a clause with the ranks whose bytes differ from the majority's, and the tensors; "" if all are equal.

    Args:
        comm: communicator of this rank; all ranks must call this.
        tensors: this rank's tensors by name; the names must be the same on all ranks.
    """
    if comm.world.size == 1:
        return ""
    own = {name: checksum(tensor) for name, tensor in tensors.items()}
    if count_equal(comm, repr(own)) == comm.world.size:
        return ""
    gathered = all_gather_json(comm, [socket.gethostname(), own])
    usual, count = Counter(repr(sums) for _, sums in gathered).most_common(1)[0]
    odd = {rank: (host, sums) for rank, (host, sums) in enumerate(gathered) if repr(sums) != usual}
    most = next(sums for _, sums in gathered if repr(sums) == usual)
    names = list(dict.fromkeys(name for _, sums in odd.values() for name in sums if sums[name] != most.get(name)))
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    where = f"{', '.join(names[:MAX_NAMED])}{more}"
    who = ", ".join(f"rank {rank} ({host})" for rank, (host, _) in odd.items())
    if count > len(odd):
        return f"{who} differs from the other {count} ranks in {where}"
    first = next(rank for rank, (_, sums) in enumerate(gathered) if repr(sums) == usual)
    return f"rank {first} ({gathered[first][0]}) and {who} differ in {where}; no majority shows which one is correct"
