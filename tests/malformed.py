"""Run the trainer and its commands on malformed files many times, each in a fork of this process.

    python malformed.py FOLDER SEED COUNT

FOLDER holds a finished run, ``run``, and its configuration, ``mine.toml``. Each time one file of a copy is harmed in a
random way, and one program reads it. Prints a line of JSON for each: what was harmed and how, which program, its exit
code, seconds, and what it said.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

torch.set_num_threads(1)  # a fork has no thread pool and would wait for it

import torchvision  # noqa: E402, F401 -- so that each fork has it

from trainer.__main__ import main as run_trainer  # noqa: E402

LIMIT = 60
"""Seconds after which a program counts as hung."""
VALUES = [
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "NaN",
    "99999999999999999999",
    '""',
    '"\\u0000\\u001b[2J"',
    "[]",
    "{}",
    "[[]]",
]
TARGETS = [
    "mine.toml",
    "run/config.toml",
    "run/run.json",
    "run/status.json",
    "run/metrics.jsonl",
    "run/goodput.jsonl",
    "run/lock",
    "run/STOP",
    "run/verdict.1",
    "run/requeues",
    "run/logs/1/status.json",
    "run/checkpoints/latest/manifest.json",
    "run/checkpoints/latest/model.safetensors",
]
PROGRAMS = {
    "resume": ["mine.toml", "--output-dir", "run", "--resume", "auto", "--no-figures", "--max-steps", "9"],
    "train on": ["mine.toml", "--output-dir", "run", "--resume", "auto", "--no-figures", "--epochs", "2"],
    "dry run": ["mine.toml", "--output-dir", "run", "--resume", "auto", "--dry-run"],
    "evaluate": ["evaluate", "run"],
    "export": ["export", "run", "model.pt"],
    "report": ["report", "run"],
}


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def flip(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def remove(data: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(data))
    return data[:begin] + data[begin + chance.randrange(1, 40) :]


def repeat(data: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(data))
    return data + data[begin : begin + 200] * chance.randrange(1, 20)


def insert(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.randbytes(chance.randrange(1, 30)) + data[place:]


def another_value(data: bytes, chance: random.Random) -> bytes:
    """Replace the value after a : or = with one of another type."""
    places = [place for place, byte in enumerate(data[: 1 << 16]) if byte in b":="]
    if not places:
        return insert(data, chance)
    place = chance.choice(places) + 1
    ends = [data.find(mark, place) for mark in (b",", b"\n", b"}")]
    end = min((found for found in ends if found > 0), default=len(data))
    return data[:place] + chance.choice(VALUES).encode() + data[end:]


def deep(_data: bytes, chance: random.Random) -> bytes:
    return chance.choice([b"[", b'{"a":', b"a = ["]) * chance.choice([1000, 100_000])


def noise(_data: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice([0, 1, 100, 1 << 20]))


def be(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        path.unlink(missing_ok=True)
        make(path)

    return harm


CONTENTS = [cut, flip, remove, repeat, insert, another_value, another_value, another_value, deep, noise]
KINDS = {
    "FIFO": be(os.mkfifo),
    "folder": be(Path.mkdir),
    "missing": be(lambda _path: None),
    "link to itself": be(lambda path: path.symlink_to(path.name)),
    "endless": be(lambda path: path.symlink_to("/dev/zero")),
}


def harm(path: Path, chance: random.Random) -> str:
    """Harm a file, which need not be there; return how. It is of yesterday, as the owner of a fresh lock may live."""
    name = _harm(path, chance)
    if path.is_file():
        os.utime(path, (time.time() - 86400,) * 2)
    return name


def _harm(path: Path, chance: random.Random) -> str:
    if chance.random() < 0.15:
        name, change = chance.choice(list(KINDS.items()))
        change(path)
        return name
    content = chance.choice(CONTENTS)
    before = path.read_bytes() if path.is_file() else b'{"host": "here", "pid": 1, "attempt": 1}\n'
    path.write_bytes(content(before, chance))
    return content.__name__


def run_in_fork(argv: list[str], folder: Path) -> tuple[int, float, str]:
    """Return exit code, seconds and output; the code is -9 if the program had to be killed."""
    log = folder / "said"
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        code = 99
        with contextlib.suppress(SystemExit):
            sys.argv = ["trainer", *argv]
            code = run_trainer()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    ended, outcome = 0, 0
    while not ended:
        ended, outcome = os.waitpid(pid, os.WNOHANG)
        if not ended and time.monotonic() > began + LIMIT:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(outcome), time.monotonic() - began, log.read_text(errors="replace")


def main() -> None:
    place, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        folder = place / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copytree(place / "run", folder / "run", symlinks=True)
        shutil.copy(place / "mine.toml", folder)
        target, program = chance.choice(TARGETS), chance.choice(list(PROGRAMS))
        how = harm(folder / target, chance)
        code, seconds, said = run_in_fork(PROGRAMS[program], folder)
        found = {"number": number, "target": target, "how": how, "program": program, "code": code}
        print(json.dumps(found | {"seconds": seconds, "said": said}), flush=True)


if __name__ == "__main__":
    main()
