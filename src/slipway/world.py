"""Which process of which world this is."""

from __future__ import annotations

from typing import NamedTuple


class World(NamedTuple):
    """The place of this process among all that train together: found by what joins them, never guessed."""

    rank: int = 0
    """From 0 to ``size - 1`` over all nodes."""
    size: int = 1
    local_rank: int = 0
    """From 0 to ``local_size - 1`` on this node."""
    local_size: int = 1

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which alone writes the run folder and speaks for all."""
        return self.rank == 0

    @property
    def is_first_of_node(self) -> bool:
        """Whether this rank does what is to be done once on each node."""
        return self.local_rank == 0
