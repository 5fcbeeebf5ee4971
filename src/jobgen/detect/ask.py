"""A command's answer within a time limit, whatever the command does: hang, print without end, leave children behind."""

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
"""Seconds that a command may take: those that ask Slurm's controller try for several times MessageTimeout (10 s)."""
LARGEST = 1 << 26
"""Bytes that it may print: `pbsnodes -a` of 10,000 nodes prints a quarter of that."""
CHANGE_OUTPUT = ("SINFO_", "SCONTROL_")
"""Beginnings of variables by which users change what sinfo and scontrol print (sinfo(1), scontrol(1))."""


class Answer(NamedTuple):
    """What a command said."""

    command: str
    """The command as people type it, the source of what was found in its answer."""
    text: str
    """What it printed; "" where it failed."""
    error: str
    """Why there is no answer, on one line; "" where there is one."""


class Asker:
    """Runs commands, and remembers what did not answer: a program that hangs is not started again."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """``env``: the environment of the login node, in which commands run."""
        self.env = env
        self.failed: List[Answer] = []
        self._hanging: Set[str] = set()

    def ask(self, *words: str, both: bool = False, expected: bool = True) -> Answer:
        """Return what a command prints on standard output, and with ``both`` as errors too.

        One that is missing, fails or hangs has no answer; where that was ``expected`` to exist, it is in ``failed``.
        """
        command = join(words)
        if words[0] in self._hanging:
            answer = Answer(command, "", f"not asked, as {words[0]} did not answer before")
        else:
            answer = self._run(list(words), command, both=both)
        if answer.error and expected:
            self.failed.append(answer)
        return answer

    def _run(self, words: List[str], command: str, *, both: bool) -> Answer:
        try:
            process = subprocess.Popen(
                words,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if both else subprocess.PIPE,
                start_new_session=True,  # so that its children can be ended with it
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
        kept = {name: value for name, value in self.env.items() if not name.startswith(CHANGE_OUTPUT)}
        return {**kept, "LC_ALL": "C"}


def _read(process: subprocess.Popen[bytes]) -> Tuple[str, str, str]:
    """Return what a process prints, as output and as errors, and why it was not read to its end."""
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
            elif has_ended and not ready:  # a child that it left behind holds the pipes
                break
    if not why:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            why = f"no end within {LIMIT:.0f} s"
    output, errors = ([bytes(part).decode("utf-8", errors="replace") for part in read.values()] + [""])[:2]
    return output, errors, why
