"""Test case of the fuzzer: a script and its expected result, as one readable file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from options import Plan, differing, draft_of, options_of


@dataclass
class Case:
    """A script and how to check its run. Names and slugs are those of Option."""

    script: str
    title: str = ""
    ranks: int = 1
    may_say: list[str] = field(default_factory=list)
    unrestorable: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    undetermined: bool = False
    may_idle: bool = False
    chains: list[list[str]] = field(default_factory=list)
    """Kills of consecutive runs: WAY@POINT, RANK:WAY@POINT, KILL@renameNUMBER, KILL@latestNUMBER, or WAY~SECONDS,
    from outside.
    """

    @property
    def is_exact(self) -> bool:
        """Whether the result must be the same wherever the script is killed."""
        return not (self.unrestorable or self.listed or self.refused)

    def text(self) -> str:
        """Return the file's text."""
        facts = {
            "ranks": str(self.ranks),
            "may say": ", ".join(self.may_say),
            "not restorable": ", ".join(self.unrestorable),
            "in the check list": ", ".join(self.listed),
            "refused": ", ".join(self.refused),
            "undetermined": "yes" if self.undetermined else "",
            "may idle": "yes" if self.may_idle else "",
            "kills": "; ".join(" ".join(chain) for chain in self.chains),
        }
        head = [*self.title.split("\n"), "", *(f"{name}: {value}" for name, value in facts.items() if value)]
        return "".join(f"# {line}".rstrip() + "\n" for line in head) + "\n" + self.script


def read_case(path: Path) -> Case:
    """Return the case of a file that ``Case.text`` wrote."""
    head, _, script = path.read_text(encoding="utf-8").partition("\n\n")
    facts = dict(re.findall(r"(?m)^# ([a-z ]+): (.*)$", head))

    def listed(name: str) -> list[str]:
        return [part.strip() for part in facts.get(name, "").split(",") if part.strip()]

    return Case(
        script,
        title=path.stem,
        ranks=int(facts["ranks"]),
        may_say=listed("may say"),
        unrestorable=listed("not restorable"),
        listed=listed("in the check list"),
        refused=listed("refused"),
        undetermined="undetermined" in facts,
        may_idle="may idle" in facts,
        chains=[chain.split() for chain in facts.get("kills", "").split(";") if chain.strip()],
    )


def case_of(plan: Plan, title: str, chains: Sequence[list[str]] = ()) -> Case:
    """Return the case of a plan; without ``chains``, its kills are not yet known."""
    draft, options = draft_of(plan), options_of(plan)
    parts = [f"{group}: {name}" for group, name in differing(plan).items()]
    return Case(
        draft.text(),
        title="\n".join([title, *(f"  {part}" for part in parts)]),
        ranks=draft.ranks,
        may_say=sorted({slug for found in options for slug in found.may_say}),
        unrestorable=[name for found in options for name in found.unrestorable],
        listed=[name for found in options for name in found.listed],
        refused=[slug for found in options for slug in found.refused],
        undetermined=any(found.undetermined for found in options),
        may_idle=any(found.may_idle for found in options),
        chains=[chain for chain in chains if chain],
    )
