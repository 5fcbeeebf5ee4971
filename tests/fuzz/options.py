"""Building blocks of random scripts: groups of options; a script has one option of each group.

An option is *exact*: a script of only such options ends the same wherever it is killed, without a warning or refusal.
Or it is *not restorable*: then a warning or refusal names it, or the check list of the first attempt does. Or it is
*refused* at once. The first option of a group is its simplest: the shrinker reduces a failing script to those.
"""

import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draft import Draft

Plan = dict[str, str]
"""Name of the option, by group."""
Needs = Callable[[Plan], bool]
REPLACED = {"compute", "backward", "step", "zero"}
"""Lines of a draft that an option replaces; it adds to all others."""


@dataclass(frozen=True)
class Option:
    """One way in which scripts are written."""

    name: str
    weight: int
    """How often it is drawn, relative to the others of its group."""
    places: dict[str, Any]
    """Text of one or more lines, by attribute of Draft."""
    change: Callable[[Draft, Plan], None] | None
    """Other changes to the draft."""
    gives: tuple[str, ...]
    """What it passes to the session: "kind variable"."""
    traces: dict[str, str]
    """Trace entries of a body and of the end."""
    needs: tuple[Needs, ...]
    """Conditions on the options drawn before it."""
    may_say: tuple[str, ...]
    """Slugs of warnings that are not violations, for example about a slow method."""
    unrestorable: tuple[str, ...]
    """Not restorable: one of these warnings or refusals appears, each "SLUG: what it names"."""
    listed: tuple[str, ...]
    """Not restorable and not detectable: the check list of the first attempt names one of these."""
    refused: tuple[str, ...]
    """Refused at once, with one of these slugs."""
    undetermined: bool
    """Whether two whole runs differ."""
    may_idle: bool
    """Whether a short script may make no step at all, which is refused."""

    def fits(self, plan: Plan) -> bool:
        """Return whether it can be drawn after ``plan``."""
        return all(needed(plan) for needed in self.needs)

    def apply(self, draft: Draft, plan: Plan) -> None:
        """Write it into a draft."""
        for place, text in self.places.items():
            before = getattr(draft, place)
            if not isinstance(before, list):
                setattr(draft, place, text)
                continue
            lines = textwrap.dedent(text).strip().split("\n") if text else []
            setattr(draft, place, lines if place in REPLACED else before + lines)
        for given in self.gives:
            draft.give(*given.split())
        draft.traced |= self.traces
        if self.change:
            self.change(draft, plan)


GROUPS: dict[str, dict[str, Option]] = {}
"""In the order in which they are drawn and applied."""


def add(
    group: str,
    name: str,
    *,
    weight: int = 2,
    change: Callable[[Draft, Plan], None] | None = None,
    gives: tuple[str, ...] = (),
    traces: dict[str, str] | None = None,
    needs: tuple[Needs, ...] = (),
    may_say: tuple[str, ...] = (),
    unrestorable: tuple[str, ...] = (),
    listed: tuple[str, ...] = (),
    refused: tuple[str, ...] = (),
    undetermined: bool = False,
    may_idle: bool = False,
    **places: Any,
) -> None:
    """Add an option to a group; see Option."""
    GROUPS.setdefault(group, {})[name] = Option(
        *(name, weight, places, change, gives, traces or {}, needs, may_say, unrestorable, listed, refused),
        undetermined=undetermined,
        may_idle=may_idle,
    )


def has(group: str, *names: str) -> Needs:
    """Return the condition that a plan has one of these options, or one with this prefix."""
    return lambda plan: plan[group].startswith(names)


def lacks(group: str, *names: str) -> Needs:
    """Return the condition that a plan has none of them."""
    return lambda plan: not plan[group].startswith(names)


def draw_plan(draw: random.Random, without: Sequence[str] = ()) -> Plan:
    """Draw a plan around one option that is drawn first, so that all options are equally frequent.

    Args:
        draw: random generator.
        without: prefixes of "group: option" that must not be drawn.
    """
    every = [(group, name) for group, options in GROUPS.items() for name in options]
    allowed = {(group, name) for group, name in every if not f"{group}: {name}".startswith(tuple(without))}
    group, name = draw.choice(sorted(allowed))
    for _ in range(1000):
        plan = _draw(draw, allowed)
        if plan[group] == name:
            break
    return plan


def _draw(draw: random.Random, allowed: set[tuple[str, str]]) -> Plan:
    """Draw an option of each group; the first, if no other fits."""
    plan: Plan = {}
    for group, options in GROUPS.items():
        fitting = [found for found in options.values() if (group, found.name) in allowed and found.fits(plan)]
        chosen = draw.choices(fitting, [found.weight for found in fitting])[0] if fitting else None
        plan[group] = chosen.name if chosen else next(iter(options))
    return plan


def parse_plan(parts: Sequence[str]) -> Plan:
    """Return the plan of parts named "group: option", with the first options of the other groups.

    Raises:
        ValueError: if one of them does not exist or does not fit the others.
    """
    plan = settled(dict(part.split(": ", 1) for part in parts))
    if missing := [part for part in parts if part not in {f"{group}: {name}" for group, name in plan.items()}]:
        raise ValueError(f"no such part, or it does not fit: {', '.join(missing)}")
    return plan


def settled(plan: Plan) -> Plan:
    """Return ``plan`` with the first option wherever another one was left out or does not fit."""
    found: Plan = {}
    for group, options in GROUPS.items():
        name = plan.get(group, "")
        found[group] = name if name in options and options[name].fits(found) else next(iter(options))
    return found


def differing(plan: Plan) -> Plan:
    """Return the options of ``plan`` that are not the first of their group."""
    return {group: plan[group] for group, options in GROUPS.items() if plan[group] != next(iter(options))}


def options_of(plan: Plan) -> list[Option]:
    """Return the options that a plan names."""
    return [options[plan[group]] for group, options in GROUPS.items()]


def draft_of(plan: Plan) -> Draft:
    """Return the draft of a plan."""
    draft = Draft()
    for found in options_of(plan):
        found.apply(draft, plan)
    return draft
