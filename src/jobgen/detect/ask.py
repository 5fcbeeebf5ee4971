"""Commands with limits on time and output, which may hang, print without end, or leave child processes."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from shlex import join
from typing import Dict, List, Mapping, NamedTuple, Set, Tuple

from jobgen.base.errors import printable

LIMIT = 30.0
"""Time limit in seconds: commands to Slurm's controller retry for several times MessageTimeout (10 s)."""
LARGEST = 1 << 26
"""Maximum bytes of output: `pbsnodes -a` of 10,000 nodes prints a quarter of that."""
OUTPUT_VARIABLE_PREFIXES = ("SINFO_", "SCONTROL_")
"""Prefixes of variables that change the output of sinfo and scontrol (sinfo(1), scontrol(1))."""


class Answer(NamedTuple):
    """Result of a command."""

    command: str
    """Command line, which the draft names as the source of values."""
    text: str
    """Output; "" if the command failed."""
    error: str
    """Reason for the failure, on one line; "" on success."""


class Asker:
    """Runs each command once and records failures; it does not start a program again after it has hung."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """``env``: the login node's environment, in which the commands run."""
        self.env = env
        self.failed: List[Answer] = []
        self._hanging: Set[str] = set()
        self._answers: Dict[Tuple[Tuple[str, ...], bool], Answer] = {}

    def run(self, *words: str, both: bool = False, expected: bool = True) -> Answer:
        """Run a command and return its standard output; with ``both``, standard error too.

        If the command is missing, fails or hangs, the answer has no text. If ``expected``, it is added to ``failed``.
        A command runs once; later calls return the same answer.
        """
        if known := self._answers.get((words, both)):
            return known
        command = join(words)
        if words[0] in self._hanging:
            answer = Answer(command, "", f"not asked, as {words[0]} did not answer before")
        else:
            answer = self._run(list(words), command, both=both)
        if answer.error and expected:
            self.failed.append(answer)
        self._answers[words, both] = answer
        return answer

    def _run(self, words: List[str], command: str, *, both: bool) -> Answer:
        try:
            process = subprocess.Popen(
                words,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if both else subprocess.PIPE,
                start_new_session=True,  # so that its children can be killed with it
            )
        except (OSError, ValueError) as error:
            return Answer(command, "", printable(getattr(error, "strerror", None) or str(error)))
        with process:
            try:
                output, errors, why = _read(process)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if why:
            self._hanging.add(words[0])
        elif process.returncode:
            said = (errors or output).strip().splitlines()
            why = printable(said[-1].strip()[:200]) if said else f"exit code {process.returncode}"
        return Answer(command, "" if why else output, why)

    def _environment(self) -> Dict[str, str]:
        kept = {name: value for name, value in self.env.items() if not name.startswith(OUTPUT_VARIABLE_PREFIXES)}
        return {**kept, "LC_ALL": "C"}


def _read(process: subprocess.Popen[bytes]) -> Tuple[str, str, str]:
    """Return a process's output and errors, and the reason why they are incomplete, or ""."""
    deadline, why = time.monotonic() + LIMIT, ""
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe]
    read = {pipe.fileno(): bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and not why:
            has_ended = process.poll() is not None
            ready = selector.select(0.1)
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                read[key.fd] += part
                if not part:
                    selector.unregister(key.fileobj)
            if sum(map(len, read.values())) > LARGEST:
                why = f"printed more than {LARGEST >> 20} MiB"
            elif time.monotonic() > deadline:
                why = f"no answer within {LIMIT:.0f} s"
            elif has_ended and not ready:  # a remaining child process holds the pipes open
                break
    if not why:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            why = f"no end within {LIMIT:.0f} s"
    output, errors = ([bytes(part).decode("utf-8", errors="replace") for part in read.values()] + [""])[:2]
    return output, errors, why
