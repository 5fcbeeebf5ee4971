"""A Dask client on the test cluster's head: the rendered script, started as a user would on a login node."""

import json
import subprocess
import time
from pathlib import Path

from clusters import AS_ROOT, CLUSTER, LIBRARY, Cluster, until
from support import ROOT


class DaskClient:
    """A running client script ``path`` with the run folder ``out``."""

    def __init__(self, cluster: Cluster, path: Path, *arguments: str, out: Path, **env: str) -> None:
        self.cluster, self.out = cluster, out
        self.log = out.with_name(f"{out.name}.{time.monotonic_ns()}.log")
        settings = {"SLIPWAY_DEVICE": "cpu", "USE_CONTAINER": "0", "SLIPWAY_VENV": str(ROOT / ".venv"),
                    "SLIPWAY_LIB": str(LIBRARY), "SLIPWAY_RUN_DIR": str(out), **AS_ROOT, **env}  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [CLUSTER, "run", "setsid", "--wait", "env", f"--chdir={out.parent}", "bash", str(path), *arguments],
                env={**cluster.env, **{name: value for name, value in settings.items() if value}},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def until(self, text: str, *, times: int = 1, limit: float = 150) -> None:
        """Wait until the client's output contains ``text`` the given number of times."""
        until(lambda: self.output.count(text) >= times or self.process.poll() is not None, limit=limit, pause=0.2)
        assert self.output.count(text) >= times, f"no {text!r} within {limit} s, or before its end:\n{self.output}"

    def wait(self, *codes: int, limit: float = 280) -> str:
        """Wait until the client exits with one of ``codes``; return its output."""
        until(lambda: self.process.poll() is not None, limit=limit)
        assert self.process.poll() in codes, self.output
        return self.output

    def folder(self, attempt: int = 1) -> Path:
        """Return the folder of an attempt's request."""
        return self.out / "logs" / str(attempt) / "dask"

    def connection(self, attempt: int = 1) -> dict:
        return json.loads((self.folder(attempt) / "workers.json").read_text())

    def pids(self, node: str, *words: str) -> list[int]:
        """Return a node's processes, with IDs in its namespace, whose arguments contain all ``words``."""
        rows = [row.split(None, 1) for row in self.cluster.control("on", node, "ps", "-eo", "pid=,args=").splitlines()]
        return [int(pid) for pid, args in rows if all(word in args for word in words) and "setsid" not in args]

    @property
    def script(self) -> int:
        """The script's main process: the shell that started all other processes of that name."""
        return min(self.pids("head", "bash", "dask.sh") + self.pids("head", "bash", "/job.sh"))

    def signal(self, name: str, *, group: bool = False) -> None:
        """Send a signal to the script or to its process group."""
        self.cluster.control("on", "head", "kill", f"-{name}", "--", f"{'-' if group else ''}{self.script}")

    def kill(self, node: str, *words: str) -> None:
        """Send SIGKILL to a node's processes whose arguments contain ``words``; at least one must exist."""
        found = self.pids(node, *words)
        assert found, f"no process {words} on {node}"
        self.cluster.control("on", node, "kill", "-KILL", *map(str, found))

    def close(self) -> None:
        """End the processes that a failed test has left."""
        if self.process.poll() is None:
            self.signal("TERM")
            self.process.wait(90)
