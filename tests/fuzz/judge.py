"""Checks whether a script's runs, uninterrupted and killed, keep the guarantees of a session."""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from cases import Case

from attempts import Attempt, Place, attempt

MESSAGE = re.compile(r"(?m)\b(error|warning)\[([a-z0-9-]+)\]: (.*)$")
TIMES = {"elapsed", "steps_per_second"}
WAYS = {"KILL": 5, "TERM": 4, "STOP": 2, "USR1": 1, "INT": 1, "RAISE": 1, "EXIT": 1, "rename": 3, "outside": 1}
GRADIENTS = "gradients"
"""A component of checkpoints."""
CONSEQUENCES = {"lost-peer", "cannot-join"}
"""Slugs by which a rank reports that another one has ended."""
AFTER_THE_DATA = {"after", "end"}
"""Sites of a script's traces after its last batch."""


@dataclass
class Finding:
    """A violation that a script shows."""

    kind: str
    text: str
    chain: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def kills(self) -> list[str]:
        """The kills of the chain, without attempts that were not killed."""
        return [kill for kill in self.chain if "@" in kill or "~" in kill]

    def __str__(self) -> str:
        kills = f" after {' '.join(self.chain)}" if self.chain else ""
        return f"{self.kind}{kills}: {self.text}"


class Judge:
    """Runs a case and reports violations."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.attempts = 0
        self.script = folder / "script.py"

    def examine(self, draw: random.Random, *, chains: int) -> Finding | None:
        """Run the case uninterrupted, twice, and then killed: by its own chains, or as many random ones.

        Returns:
            the first violation; None if there is none.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.script.write_text(self.case.text(), encoding="utf-8")
        whole = self.whole = self._run("whole")
        if self.case.may_idle and set(_slugs(whole)) == {"no-optimizer-step"}:
            return None
        if self.case.refused:
            return self._refused(whole)
        found = self._flaw(whole, []) or self._incomplete(whole) or self._undetermined()
        if found or whole.failed:  # then it was refused with an error that names such a part
            return found
        for number, chain in enumerate(self.case.chains or [self._draw_chain(draw) for _ in range(chains)]):
            found = found or self._killed(chain, f"killed {number}")
        return found

    def _undetermined(self) -> Finding | None:
        """Return what differs in a second uninterrupted run."""
        self.content = content(self.folder / "whole")
        if self.case.undetermined:
            return None
        again = self._run("whole again")
        differing = _difference(again, self.whole)
        if not differing and content(self.folder / "whole again") != self.content:
            differing = _first_difference(content(self.folder / "whole again"), self.content)
        return Finding("not deterministic", differing, output=again.output) if differing else None

    def _draw_chain(self, draw: random.Random) -> list[str]:
        points, renames, latest = self.whole.ended
        chain = []
        for _ in range(draw.choice([1, 1, 2, 3, 4])):
            rank = f"{draw.randrange(self.case.ranks)}:" if self.case.ranks > 1 else ""
            at = draw.randint(1, points) if draw.random() < 0.6 else draw.randint(1, min(6, points))
            way = draw.choices([*WAYS], [*WAYS.values()])[0]
            if way == "rename":
                what, most = draw.choice([("rename", renames), ("latest", latest)])
                chain.append(f"{'0:' if rank else ''}KILL@{what}{draw.randint(1, most)}")
            elif way == "outside":
                chain.append(f"{draw.choice(['KILL', 'TERM'])}~{draw.random() * self.whole.seconds:.3f}")
            else:
                chain.append(f"{rank}{way}@{at}")
        return chain

    def _run(self, name: str, kill: str = "") -> Attempt:
        self.attempts += 1
        return attempt(self.script, self.folder / name, ranks=self.case.ranks, kill=kill)

    def _killed(self, chain: list[str], name: str) -> Finding | None:
        """Run the script until each kill of ``chain`` has taken place, and then to its end."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        seen: set[Place] = set()
        said = self._said(self.whole)
        done: list[str] = []
        for kill in [*chain, ""]:
            done.append(kill or "nothing")
            is_saved = any((self.folder / name).rglob("checkpoints/latest"))
            now = self._run(name, kill)
            said += self._said(now)
            if found := self._flaw(now, done):
                return found
            differing = self._differing(now, resumed=is_saved)
            if differing or (now.failed and not now.killed):  # the latter is a refusal that names its subject
                return self._silence(said, differing, done, now)
            seen |= now.trace.keys()
            if now.ended and self.case.undetermined:  # and nothing was saved before: a whole run of other numbers
                return None
            if now.ended:
                return self._finished(name, said, seen, done, now)
        return Finding("not finished", f"exit code(s) {now.codes}", done, now.output)

    def _differing(self, now: Attempt, *, resumed: bool) -> str:
        if self.case.undetermined:
            continued = resumed and any(site not in AFTER_THE_DATA for _, site, _ in now.trace)
            return "the resumed run continued" if continued else ""
        return _difference(now, self.whole, part=True)

    def _finished(self, name: str, said: list[str], seen: set[Place], done: list[str], now: Attempt) -> Finding | None:
        """Check that nothing was left out, and that the folder is as expected."""
        if missing := sorted(self.whole.trace.keys() - seen):
            return self._silence(said, f"{_name(missing[0])} never came", done, now)
        if content(self.folder / name) != self.content:
            return self._silence(said, _first_difference(content(self.folder / name), self.content), done, now)
        return self._again(name, said, [*done, "again"])

    def _again(self, name: str, said: list[str], done: list[str]) -> Finding | None:
        """Start a finished run again: it must end at once, with the same weights."""
        now = self._run(name)
        if found := self._flaw(now, done):
            return found
        differing = _difference(now, self.whole, part=True)
        if not differing and content(self.folder / name) != self.content:
            differing = "the finished run's folder has changed"
        if any(site == "train" for _, site, _ in now.trace):
            differing = "a finished run has trained on"
        return self._silence(said, differing, done, now) if differing else None

    def _silence(self, said: list[str], differing: str, done: list[str], now: Attempt) -> Finding | None:
        """Return the violation if a result differs and no message has named the reason."""
        if said:
            return None
        kind = "differs" if self.case.is_exact else "differs unnamed"
        return Finding(kind, differing, done, now.output)

    def _flaw(self, now: Attempt, done: list[str]) -> Finding | None:
        """Return what is wrong with a single attempt."""
        if now.hung:
            return Finding("hangs", "", done, now.output)
        if now.twice:
            return Finding("fuzzer", f"{_name(now.twice[0])} is traced twice", done, now.output)
        known = {*self.case.may_say, *self._named(now), *(CONSEQUENCES if now.killed else ())}
        for kind, slug, text in MESSAGE.findall(now.output):
            if slug not in known:
                return Finding("says", f"{kind}[{slug}]: {text}", done, now.output)
        if now.failed and not now.killed and not self._said(now):
            return Finding("fails", f"exit code(s) {now.codes}: {now.output.strip()[-300:]}", done, now.output)
        return None

    def _incomplete(self, now: Attempt) -> Finding | None:
        if now.failed or now.ended:
            return None
        return Finding("not finished", f"exit code(s) {now.codes}", output=now.output)

    def _said(self, now: Attempt) -> list[str]:
        """Return an attempt's messages about parts that cannot be restored."""
        lines = [line for line in now.output.splitlines() if line.startswith("slipway: ")]
        return self._named(now) + [line for line in lines if any(name in line for name in self.case.listed)]

    def _named(self, now: Attempt) -> list[str]:
        """Return the slugs of its warnings and refusals that name such a part."""
        expected = [name.split(": ") for name in self.case.unrestorable]
        return [
            slug
            for _, slug, text in MESSAGE.findall(now.output)
            if any(slug == e[0] and e[1] in text for e in expected)
        ]

    def _refused(self, now: Attempt) -> Finding | None:
        if not now.failed or not set(_slugs(now)) & set(self.case.refused):
            said = ", ".join(_slugs(now)) or "without a word"
            return Finding("not refused", f"exit code(s) {now.codes}, {said}", output=now.output)
        return None


def _slugs(now: Attempt) -> list[str]:
    return [slug for kind, slug, _ in MESSAGE.findall(now.output) if kind == "error"]


def _difference(now: Attempt, whole: Attempt, *, part: bool = False) -> str:
    """Return the first result in which two attempts differ; a ``part`` may lack some."""
    for place, values in now.trace.items():
        if place not in whole.trace:
            return f"{_name(place)} does not come in the whole run"
        expected = whole.trace[place]
        if values != expected:
            names = [name for name in values if values[name] != expected.get(name)]
            return f"{_name(place)}: " + "; ".join(
                f"{name} {values[name]} instead of {expected.get(name)}" for name in names
            )
    missing = [] if part else sorted(whole.trace.keys() - now.trace.keys())
    return f"{_name(missing[0])} never came" if missing else ""


def _name(place: Place) -> str:
    rank, site, numbers = place
    return f"rank {rank}, {site} {list(numbers)}"


def content(folder: Path) -> dict[str, object]:
    """Return the contents of a run folder, by file: records without times, and the objects of the last checkpoint.

    Omits what a checkpoint records about the run's history, and gradients, which are saved only if they are needed.
    """
    found: dict[str, object] = {}
    for file in sorted(folder.rglob("checkpoints/latest")):
        place = file.relative_to(folder)
        manifest = json.loads((file / "manifest.json").read_text())
        position = {name: value for name, value in manifest["position"].items() if name not in TIMES}
        trees = {name: tree for name, tree in manifest["trees"].items() if name != GRADIENTS}
        found[f"{place}/manifest.json"] = {"position": position, "metric": manifest["metric"], "trees": trees}
        for tensors in file.glob("*.safetensors"):
            if tensors.stem != GRADIENTS:
                found[f"{place}/{tensors.name}"] = tensors.read_bytes()
    for file in sorted(folder.rglob("metrics.jsonl")):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        found[str(file.relative_to(folder))] = [
            {name: value for name, value in record.items() if name not in TIMES} for record in records
        ]
    return found


def _first_difference(now: dict[str, object], whole: dict[str, object]) -> str:
    for name in sorted(now.keys() | whole.keys()):
        left, right = now.get(name), whole.get(name)
        if left != right:
            if isinstance(left, dict) and isinstance(right, dict):
                return f"{name}: {_first_difference(left, right)}"
            if isinstance(left, bytes):
                return f"{name} has other bytes"
            if isinstance(left, list) and isinstance(right, list):
                pairs = [pair for pair in zip(left, right, strict=False) if pair[0] != pair[1]]
                return (
                    f"{name}: {pairs[0][0]} instead of {pairs[0][1]}"
                    if pairs
                    else f"{name}: {len(left)} instead of {len(right)}"
                )
            return f"{name}: {left} instead of {right}"
    return "nothing"
