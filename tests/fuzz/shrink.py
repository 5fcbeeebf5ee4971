"""Reduces a failing script: it leaves out parts and kills while the violation stays."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from cases import Case, case_of
from judge import Finding, Judge
from options import Plan, differing, settled

TRIES = 6
"""New random runs if the kills of the finding no longer show it."""


class Shrinker:
    """Reduces the script of one seed."""

    def __init__(self, plan: Plan, seed: int, found: Finding, folder: Path) -> None:
        self._plan, self._seed, self._found, self._folder = plan, seed, found, folder

    def shrink(self) -> tuple[Case, Finding]:
        """Return the smallest case and its finding."""
        while sum(self._without(group) for group in differing(self._plan)):
            pass
        while any(self._killed(chain) for chain in _shorter(self._found.kills)):
            pass
        return case_of(self._plan, f"seed {self._seed}: {self._found}", [self._found.kills]), self._found

    def _without(self, group: str) -> bool:
        less = settled({name: option for name, option in self._plan.items() if name != group})
        if len(differing(less)) >= len(differing(self._plan)):
            return False
        tries = [self._found.kills, []] if self._found.kills else [[]]
        return any(self._still(less, chain) for chain in tries)

    def _killed(self, chain: list[str]) -> bool:
        return self._still(self._plan, chain) and len(self._found.kills) <= len(chain)

    def _still(self, plan: Plan, chain: list[str]) -> bool:
        """Return whether ``plan`` shows the same kind of violation, and keep it if so."""
        case = case_of(plan, "", [chain] if chain else [])
        found = Judge(case, self._folder).examine(random.Random(self._seed), chains=TRIES)
        shutil.rmtree(self._folder, ignore_errors=True)
        if not found or found.kind != self._found.kind:
            return False
        self._plan, self._found = plan, found
        return True


def _shorter(chain: list[str]) -> list[list[str]]:
    return [chain[:number] + chain[number + 1 :] for number in range(len(chain))] if len(chain) > 1 else []
