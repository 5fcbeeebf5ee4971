"""An animated recording of a terminal, as SVG: `jobgen run --follow` of a script, one rank of which is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from html import escape
from pathlib import Path
from typing import NamedTuple

COLUMNS, ROWS = 100, 26
WIDTH, LINE, MARGIN = 860, 18, 14
"""Pixels of the picture, of a line and of its margin."""
LONGEST_PAUSE = 1.5
"""Seconds: longer pauses between two lines are shortened to this."""
EPOCHS, KILLED_AFTER = 20, "epoch 11:"
COLOURS = (
    (r"^\$ ", "#7ee787"),
    (r"^# ", "#ff7b72"),
    (r"warning\[", "#e3b341"),
    (r"error\[", "#ff7b72"),
    (r"^(epoch|slipway:) ", "#a5d6ff"),
)
"""Patterns of lines, and their colours."""


class Line(NamedTuple):
    """One line of the terminal."""

    seconds: float
    """Time since the start of the recording."""
    text: str


def record() -> list[Line]:
    """Run the script that `jobgen new` writes on two ranks of this machine, kill rank 1, and return what it prints.

    Names of folders on this machine are replaced by those of a user's home folder.
    """
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home, "XDG_CONFIG_HOME": f"{home}/.config", "PYTHONUNBUFFERED": "1"}
        jobgen = [sys.executable, "-m", "jobgen"]
        subprocess.run([*jobgen, "new", "mine"], cwd=home, env=environment, check=True, capture_output=True)
        detect = ["site", "--detect", "--save", "--yes"]
        subprocess.run([*jobgen, *detect], cwd=home, env=environment, check=True, capture_output=True)
        words = ["run", "train.py", "--gpus-per-node", "2", "--venv", sys.prefix, "--follow"]
        words += ["--", "--epochs", str(EPOCHS)]
        typed = " ".join(["jobgen", *words]).replace(f"--venv {sys.prefix} ", "")
        began, lines = time.monotonic(), [Line(0.0, f"$ {typed}")]
        job = subprocess.Popen(
            [*jobgen, *words], cwd=f"{home}/mine", env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert job.stdout
        for text in job.stdout:
            now = time.monotonic() - began
            shown = text.rstrip("\n").replace(sys.prefix, "/home/me/envs/torch").replace(home, "/home/me")
            lines += [Line(now, part) for part in textwrap.wrap(shown, COLUMNS, drop_whitespace=False) or [""]]
            if text.startswith(KILLED_AFTER):
                number = rank_process(1, f"{home}/mine")
                os.kill(number, signal.SIGKILL)
                lines.append(Line(now, f"# in another terminal: kill -9 {number}, which is rank 1"))
        if job.wait() != 0:
            sys.exit(f"pictures: jobgen run ended with {job.returncode}:\n" + "\n".join(line.text for line in lines))
        return lines


def rank_process(rank: int, folder: str) -> int:
    """Return the process number of a rank whose working folder is ``folder``; not of its workers."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            parent = re.search(r"PPid:\s+(\d+)", (process / "status").read_text())
            launched = parent and b"torchrun" in Path("/proc", parent[1], "cmdline").read_bytes()
            here = str((process / "cwd").readlink()) == folder
        except OSError:  # it has ended, or is another user's
            continue
        if here and launched and f"RANK={rank}".encode() in variables:
            return int(process.name)
    sys.exit(f"pictures: no process of rank {rank} in {folder}")


def draw(lines: list[Line], path: Path) -> None:
    """Write the lines as an SVG that shows them as they came, scrolls, and begins again after some seconds."""
    times, now, before = [], 0.0, 0.0
    for line in lines:
        now += min(LONGEST_PAUSE, line.seconds - before)
        before = line.seconds
        times.append(now)
    total = now + 6
    height = 2 * MARGIN + ROWS * LINE
    frames = []
    for number, shown in enumerate(times):
        if number + 1 == len(times) or times[number + 1] > shown:  # lines of the same moment move together
            shift = -LINE * max(0, number + 1 - ROWS)
            frames.append(f"{100 * shown / total:.2f}% {{ transform: translateY({shift}px) }}")
    frames.append(f"100% {{ transform: translateY({shift}px) }}")
    rows = []
    for number, (line, shown) in enumerate(zip(lines, times, strict=True)):
        colour = next((colour for pattern, colour in COLOURS if re.search(pattern, line.text)), "#e6edf3")
        rows.append(
            f'<text y="{MARGIN + LINE * (number + 1) - 5}" fill="{colour}" style="animation-delay:{shown:.2f}s">'
            f"{escape(line.text)}</text>"
        )
    path.write_text(
        f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">
<title>jobgen run --follow: a rank is killed, and the ranks start again from the newest checkpoint</title>
<style>
text {{ font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }}
@media (prefers-reduced-motion: no-preference) {{
text {{ opacity: 0; animation: show 1ms forwards }}
@keyframes show {{ to {{ opacity: 1 }} }}
.scroll {{ animation: scroll {total:.2f}s step-end forwards }}
@keyframes scroll {{
{chr(10).join(frames)}
}}
}}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<svg x="{MARGIN}" width="{WIDTH - 2 * MARGIN}" y="{MARGIN - 8}" height="{height - MARGIN}" overflow="hidden">
<g class="scroll">
{chr(10).join(rows)}
</g>
</svg>
</svg>
""",
        encoding="utf-8",
    )


def restart(path: Path) -> None:
    """Record a run and draw it."""
    draw(record(), path)
