"""A step of the job script: a command that runs on all nodes at once and whose output is written here."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import msgspec

from distributed import Client
from slipway.base.contract import ATTEMPT_OUTPUT
from slipway.base.errors import add_label
from trainer.config.errors import ConfigError, TrainerError
from trainer.launch.dask import worker
from trainer.launch.dask.connection import Connection, security_of

CONNECT = 10.0
"""Seconds to wait for Dask's scheduler."""
POLL = 1.0
LOST = 1
"""Exit code that stands for a lost node."""


class Step:
    """A command that runs on some of the nodes."""

    def __init__(self, client: Client, workers: list[str], *, together: bool, copy: TextIO) -> None:
        """Prepare to run on ``workers``; with ``together``, the first failure ends the other commands.

        ``copy`` receives a copy of their standard output.
        """
        self._client, self._together, self._copy = client, together, copy
        self._workers = dict(enumerate(workers))
        self._name = f"slipway-{secrets.token_hex(8)}"
        self._codes: dict[int, int] = {}
        self._first = 0
        self._news = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

    async def run(self, script: str) -> int:
        """Run ``script`` with Bash on each node; return the exit code of the first failure, or 0.

        Raises:
            TrainerError: if Dask's scheduler no longer answers.
        """
        self._client.subscribe_topic(self._name, self._on_event)
        futures = [
            self._client.submit(
                worker.run, script, number, self._name,
                workers=[address], allow_other_workers=False, pure=False, retries=0, key=f"{self._name}-{number}",
            )
            for number, address in self._workers.items()
        ]  # fmt: skip
        while len(self._codes) < len(futures):
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), POLL)
            await self._check_lost_workers()
            for number, future in enumerate(futures):
                if future.status == "error" and number not in self._codes:
                    sys.stderr.write(f"dask: node {number}: {await future.exception()}\n")
                    self._end(number, LOST)
        return self._first

    def stop(self) -> None:
        """Send SIGTERM to the commands on all nodes."""
        self._stopping = asyncio.ensure_future(self._stop())

    def _on_event(self, event: tuple[float, tuple[int, str, str | int]]) -> None:
        """Write a node's output, or record the end of its command."""
        number, what, value = event[1]
        if what == worker.ENDED:
            self._end(number, int(value))
        else:
            stream = sys.stdout if what == "stdout" else sys.stderr
            stream.write(str(value))
            stream.flush()
            if what == "stdout":
                with suppress(OSError):  # a full disk must not end the step
                    self._copy.write(str(value))
                    self._copy.flush()

    def _end(self, number: int, code: int) -> None:
        if number in self._codes:
            return
        self._codes[number] = code
        self._first = self._first or code
        self._news.set()
        if code and self._together and not self._stopping:
            self.stop()

    async def _stop(self) -> None:
        left = [address for number, address in self._workers.items() if number not in self._codes]
        await self._client.run(worker.stop, self._name, workers=left, on_error="ignore")

    async def _check_lost_workers(self) -> None:
        try:
            alive: dict[str, int] = await asyncio.wait_for(self._client.ncores(), CONNECT)
        except (OSError, TimeoutError) as error:
            raise TrainerError(
                "dask-scheduler-gone", "Dask's scheduler, which holds the nodes, no longer answers."
            ) from error
        for number, address in self._workers.items():
            if address not in alive and number not in self._codes:
                said = add_label(
                    "warning", "node-lost", f"node {number} ({address}) is lost: its worker has left Dask's scheduler"
                )
                sys.stderr.write(f"dask: {said}\n")
                self._end(number, LOST)


async def run_command(folder: Path, script: str, *, together: bool, first_only: bool = False) -> int:
    """Run ``script`` on each node or only on the first, forward SIGTERM to it, and return the exit code.

    Raises:
        ConfigError: if Dask's scheduler cannot be reached.
    """
    logging.getLogger("distributed").setLevel(logging.ERROR)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    try:
        connection = Connection.read(folder)
        client = await Client(
            connection.scheduler, security=security_of(folder), asynchronous=True, timeout=CONNECT, set_as_default=False
        )
    except (OSError, TimeoutError, msgspec.MsgspecError) as error:
        raise ConfigError("dask-scheduler-silent", f"cannot reach Dask's scheduler: {error}") from error
    log = folder.parent / ATTEMPT_OUTPUT if together else os.devnull
    async with client:
        with open(log, "a", encoding="utf-8") as copy:  # noqa: ASYNC230, PTH123 -- its lines are few
            step = Step(client, connection.workers[: 1 if first_only else None], together=together, copy=copy)
            return await _run_until_stopped(step, script, stopped)


async def _run_until_stopped(step: Step, script: str, stopped: asyncio.Event) -> int:
    """Run the step, and stop it when ``stopped`` is set."""
    running = asyncio.ensure_future(step.run(script))
    waiting = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        step.stop()
    waiting.cancel()
    return await running


async def on_head_node(folder: Path, words: list[str]) -> int:
    """Run a command on the first node, in that node's environment; return its exit code."""
    return await run_command(folder, f"exec {shlex.join(words)} </dev/null\n", together=False, first_only=True)
