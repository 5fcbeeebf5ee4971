"""A script under construction: the places where the parts write their lines, and its text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from string import Template

INDENT = "    "
DRAWN = '[draw("torch"), draw("numpy"), draw("python")]'
"""The draws from the global generators after the training: the same in each attempt."""
MODULES = {
    "contextlib": "import contextlib",
    "copy": "import copy",
    "gc": "import gc",
    "itertools": "import itertools",
    "random": "import random",
    "sys": "import sys",
    "np": "import numpy as np",
    "torch": "import torch",
    "dist": "import torch.distributed as dist",
}
NAMES = {
    "torch": ("nn",),
    "torch.nn.parallel": ("DistributedDataParallel",),
    "torch.optim": ("lr_scheduler",),
    "torch.optim.swa_utils": ("AveragedModel", "get_ema_multi_avg_fn"),
    "torch.utils.data": (
        *("BatchSampler", "DataLoader", "DistributedSampler", "RandomSampler", "Subset", "SubsetRandomSampler"),
        *("WeightedRandomSampler", "random_split"),
    ),
    "slipway": ("Sampler", "Session"),
    "probe": (
        *("Counters", "FOLDER", "RANK", "RANKS", "Samples", "Stream", "draw", "ended", "objective", "point", "table"),
        "trace",
    ),
}
"""Imports of a script, by module."""


def block(head: str, lines: Iterable[str]) -> list[str]:
    """Return ``lines`` indented below ``head``."""
    return [head, *(INDENT + line if line else "" for line in lines)]


@dataclass
class Loop:
    """A pass over data, with the body that trains or validates."""

    loader: str
    iteration: str
    """How it iterates, with a placeholder {loader}; "" for a body without a loop. The last line begins the loop."""
    body: list[str]
    number: str = "session.batch"
    """Name of the batch number in the body."""

    def lines(self) -> list[str]:
        """Return the loop."""
        body = [Template(line).safe_substitute(number=self.number) for line in self.body]
        if not self.iteration:
            return body
        *before, head = self.iteration.format(loader=self.loader).split("\n")
        return [*before, *block(head, body)]


@dataclass
class Draft:
    """The places of a script.

    Lines may hold ``$number``, the batch's number in its pass; ``$bare``, the model without its wrapper; ``$at``, what
    ``trace`` needs to distinguish positions within an epoch, after a comma, or nothing.
    """

    ranks: int = 1
    epochs: int = 2
    """0 for a script without epochs."""
    folds: bool = False
    """Whether the script trains twice, each time in a session."""
    folder: str = "FOLDER"
    seeded: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    """Classes and functions, and data sets."""
    setup: list[str] = field(default_factory=list)
    """Models, optimizers and the rest, before the session opens."""
    given: dict[str, dict[str, str]] = field(default_factory=dict)
    """Variable by Session argument and name."""
    arguments: list[str] = field(default_factory=list)
    """Additional arguments."""
    opened: list[str] = field(default_factory=list)
    epoch_start: list[str] = field(default_factory=list)
    after_training: list[str] = field(default_factory=list)
    """Of an epoch, after the batches that train."""
    epoch_end: list[str] = field(default_factory=list)

    loader: str = "loader"
    iteration: str = "for batch in session.batches({loader}):"
    number: str = "session.batch"
    body_start: list[str] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)
    """Counter of the training bodies."""
    compute: list[str] = field(default_factory=lambda: ["loss = objective(model(batch), batch)"])
    backward: list[str] = field(default_factory=lambda: ["loss.backward()"])
    condition: str = ""
    """Condition under which a body steps; "" for always."""
    before_step: list[str] = field(default_factory=list)
    step: list[str] = field(default_factory=lambda: ["optimizer.step()"])
    zero: list[str] = field(default_factory=lambda: ["optimizer.zero_grad()"])
    zero_first: bool = False
    """Whether gradients are zeroed before the backward pass."""
    after_step: list[str] = field(default_factory=list)
    body_end: list[str] = field(default_factory=list)
    leave: list[str] = field(default_factory=list)
    traced: dict[str, str] = field(default_factory=dict)
    """Trace entries of a body besides loss and model: expressions by name."""
    ends: dict[str, str] = field(default_factory=dict)
    """Values that are compared at the end."""
    passes: list[Loop] = field(default_factory=list)
    """Passes after the first one in each epoch; one without a body trains too."""

    def give(self, kind: str, variable: str) -> None:
        """Pass ``variable`` to the session."""
        self.given.setdefault(kind, {})[variable] = variable
        self.ends[variable] = variable

    def stepping(self) -> list[str]:
        """Return the lines of a step, with everything around it."""
        return [*self.before_step, *self.step, *([] if self.zero_first else self.zero), *self.after_step]

    def training_body(self, site: str) -> list[str]:
        """Return the body of a training loop."""
        steps = self.stepping()
        traced = "".join(f", {name}={value}" for name, value in self.traced.items())
        place = "" if self.number == "epoch" else ", $number"
        body = [
            f'point("{site}")',
            *self.body_start,
            *self.counted,
            *(self.zero if self.zero_first else []),
            *self.compute,
            *self.backward,
            f'point("{site}, before the step")',
            *(block(f"if {self.condition}:", steps) if self.condition else steps),
            *self.body_end,
            f'trace("{site}"$at{place}, batch=batch, loss=loss, model=model{traced})',
            f'point("{site}, after the step")',
            *self.leave,
        ]
        return [line.replace("$site", site) for line in body]

    def text(self) -> str:
        """Return the script without its header."""
        main = [*self.seeded, *self.data, *self.setup, *self._session()]
        if self.folds:
            main = [*block("def train(fold):", main), "", *block("for fold in range(2):", ["train(fold)"])]
        start = ['dist.init_process_group("gloo")'] if self.ranks > 1 else []
        end = ["gc.collect()", "dist.destroy_process_group()"] if self.ranks > 1 else []
        names = [*(["fold"] if self.folds else []), *(["epoch"] if self.epochs else [])]
        body = Template("\n".join([*start, *main, "ended()", *end])).substitute(
            at="".join(f", {name}" for name in names), bare="model.module" if self.ranks > 1 else "model"
        )
        return "\n".join([*_imports(body), "", body]) + "\n"

    def _session(self) -> list[str]:
        given = [f"{kind}={_objects(named)}" for kind, named in self.given.items()]
        call = ", ".join([*given, f"folder={self.folder}", *self.arguments])
        first = Loop(self.loader, self.iteration, self.training_body("train"), self.number)
        loops: list[str] = []
        for number, found in enumerate([first, *self.passes]):
            found.body = found.body or self.training_body("second")
            loops += found.lines()
            loops += [f'point("after pass {number}")', *(self.after_training if number == 0 else [])]
        if self.epochs:
            epoch = ['point("epoch")', *self.epoch_start, *loops, *self.epoch_end, 'point("end of epoch")']
            loops = block(f"for epoch in session.epochs({self.epochs}):", epoch)
        place = ", fold" if self.folds else ""
        after = ['point("after the loops")', *([f'trace("after"{place}, drawn={DRAWN})'] if self.epochs else [])]
        shown = "".join(f", {name}={value}" for name, value in self.ends.items())
        return [
            *block(
                f"with Session({call}) as session:",
                ['point("opened")', *self.opened, *loops, *after],
            ),
            f'trace("end"{place}, step=session.step{shown}, drawn={DRAWN})',
        ]


def _objects(named: dict[str, str]) -> str:
    if len(named) == 1:
        return next(iter(named.values()))
    return "{" + ", ".join(f'"{name}": {variable}' for name, variable in named.items()) + "}"


def _imports(body: str) -> list[str]:
    """Return the imports of the names that ``body`` uses."""
    words = set(re.findall(r"(?<![\w.\"])[A-Za-z_]\w*", body))
    plain = [line for name, line in MODULES.items() if name in words]
    named = [(module, sorted(words.intersection(names))) for module, names in NAMES.items()]
    return [*plain, *(f"from {module} import {', '.join(found)}" for module, found in named if found)]
