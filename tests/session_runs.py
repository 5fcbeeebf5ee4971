"""Runs of the scripts of tests/scripts/session: their commands, and the contents of their run folders."""

import json
import sys
import time

import torch

from support import INSIDE, ROOT, launch_words, started

SCRIPTS = ROOT / "tests" / "scripts" / "session"
TIMES = {"elapsed", "steps_per_second", "tokens_per_second"}


def words(name, ranks, *flags):
    """Return the command that starts a script on ``ranks`` ranks of this machine."""
    script = str(SCRIPTS / f"{name}.py")
    if ranks == 1:
        return [*INSIDE, "python" if INSIDE else sys.executable, script, *flags]
    return [*launch_words("forked", ranks, program=[script])[:-1], *flags]


def finish(name, ranks, flags, folder, *, code=0):
    """Run a script to its end, expect exit ``code``, and return its output."""
    log = folder.with_name(f"{folder.name}.{time.monotonic_ns()}.log")
    with started(words(name, ranks, *flags), log, RUN_DIR=str(folder)) as launch:
        assert launch.wait() == code, launch.output
    return launch.output


def saved_step(folder):
    """Return the step of the newest checkpoint; 0 if there is none."""
    links = list((folder / "checkpoints").glob("latest"))
    return int(links[0].resolve().name.removeprefix("step_")) if links else 0


def lines(folder, suffix):
    """Return the lists that a script has appended to the neighbour of its run folder with this suffix."""
    return [json.loads(line) for line in folder.with_name(f"{folder.name}.{suffix}").read_text().splitlines()]


def epochs_of(seen):
    """Return the sample numbers of each epoch; in its last step, in which fewer may be left than ranks, each once."""
    steps = {}
    for epoch, step, numbers in seen:
        steps.setdefault(epoch, {}).setdefault(step, []).extend(numbers)
    for of_epoch in steps.values():
        of_epoch[max(of_epoch)] = {*of_epoch[max(of_epoch)]}
    return [[number for numbers in of_epoch.values() for number in numbers] for of_epoch in steps.values()]


def records(folder):
    """Return the records of metrics.jsonl without their times; [] if there is none, as under Lightning."""
    found = [json.loads(line) for path in folder.glob("metrics.jsonl") for line in path.read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in TIMES} for record in found]


def content(folder):
    """Return a run's results without times: the tensors and trees of its last checkpoint, and its records."""
    checkpoint = folder / "checkpoints" / "latest"
    found = {"records": records(folder), **{file.name: file.read_bytes() for file in checkpoint.glob("*.safetensors")}}
    if (lightning := checkpoint / "lightning.ckpt").exists():
        return found | of_lightning(lightning)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["position"].pop("elapsed")
    manifest["facts"]["feed"].pop("changed")  # relative to the start of the attempt
    window = manifest["facts"]["window"]
    manifest["facts"]["window"] = [{name: part[name] for name in part if name not in TIMES} for part in window]
    return found | {key: manifest[key] for key in ("position", "metric", "facts", "trees")}


def differences(one, other, place=""):
    """Return the paths at which two trees of dictionaries and lists differ, with both values."""
    match one, other:
        case dict(), dict():
            parts = [(key, one.get(key), other.get(key)) for key in one | other]
        case list(), list() if len(one) == len(other):
            parts = [(number, *pair) for number, pair in enumerate(zip(one, other, strict=True))]
        case _:
            return [] if one == other else [f"{place}: {one!r:.80} != {other!r:.80}"]
    return [line for key, mine, its in parts for line in differences(mine, its, f"{place}/{key}")]


def of_lightning(path):
    """Return the state that determines how a Lightning training continues, with tensors as lists."""
    found = torch.load(path, weights_only=False)
    keys = ("epoch", "global_step", "state_dict", "optimizer_states", "lr_schedulers")
    return {key: _listed(found[key]) for key in keys}


def _listed(value):
    match value:
        case torch.Tensor():
            return value.tolist()
        case dict():
            return {key: _listed(item) for key, item in value.items()}
        case list() | tuple():
            return [_listed(item) for item in value]
    return value
