"""How far a study is, for people."""

from __future__ import annotations

from typing import List

from jobgen.runsets.states import RunState, shown_wait, table
from jobgen.studies.record import Entry


def lines_of(states: List[RunState[Entry]]) -> List[str]:
    """Return a line for each point, in columns."""
    rows = [["point", "state", "queue", "what"]]
    return table(rows + [[state.entry.name, state.state, shown_wait(state), state.about] for state in states])
