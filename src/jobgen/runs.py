"""A run folder, read from outside as docs/contract.md describes it: which job works in it, and how far it has come."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from jobgen.errors import JobgenError

SILENT = 60.0
"""Age in seconds of the lock's heartbeat from which on its owner counts as dead."""


class Run:
    """What a run folder says."""

    def __init__(self, path: Path) -> None:
        """Describe the run in ``path``."""
        self.path = path
        self.stop = path / "STOP"

    @property
    def script(self) -> str:
        """The job script that made it; "" where a person started the trainer."""
        return _text(self.path / "job.sh")

    @property
    def errors(self) -> Path:
        """What the ranks of its last attempt said on standard error."""
        logs = sorted(self.path.glob("logs/stderr.*.log"), key=lambda log: log.stat().st_mtime)
        return logs[-1] if logs else self.path / "logs" / "stderr.1.log"

    @property
    def job_id(self) -> str:
        """The job that works in it, or did last; "" where none did."""
        owner, started = _json(self.path / "lock"), _json(self.path / "run.json")
        named = re.search(r"-(\d+(?:_\d+)?)$", self.path.name)
        return str(
            owner.get("job_id") or started.get("variables", {}).get("TRAINER_JOB_ID") or (named[1] if named else "")
        )

    @property
    def alive(self) -> bool:
        """Whether its owner gave a sign of life not long ago."""
        try:
            return time.time() - (self.path / "lock").stat().st_mtime < SILENT
        except OSError:
            return False

    @property
    def ended(self) -> bool:
        """Whether no rank is at work in it."""
        return not self.alive and _json(self.path / "status.json") != {}

    def describe(self) -> str:
        """Return one line on how far it is."""
        status = _json(self.path / "status.json")
        if not status:
            return "no rank has started training"
        said = f"attempt {status.get('attempt')} {status.get('state')}"
        if status.get("state") == "running" and not self.alive:
            said += f", but without a sign of life for {SILENT:.0f} s: it crashed"
        if status.get("reason"):
            said += f" ({status['reason']})"
        return said + self._progress(status)

    def _progress(self, status: Dict[str, Any]) -> str:
        record = _last_record(self.path / "metrics.jsonl")
        if not record:
            return f", step {status.get('step')}"
        step = max(record["step"], status.get("step", 0))
        said = f", step {step}, epoch {record['epoch']:.1f}, loss {record['loss']:.4g}"
        if "samples_per_second" in record:
            said += f", {record['samples_per_second']:.0f} samples/s"
        return said + (f", test accuracy {100 * record['accuracy']:.2f} %" if "accuracy" in record else "")


def find_run(target: str) -> Optional[Run]:
    """Return the run in the folder ``target``, or of the job of that number; "" means the newest run.

    Raises:
        JobgenError: if there is no run at all.
    """
    if target and Path(target).is_dir():
        return Run(Path(target))
    output = Path(os.environ.get("OUTPUT", "runs"))
    folders = sorted((path for path in output.glob("*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
    if not target and not folders:
        raise JobgenError(f"no run in {output}: name a run folder or the number of a job.")
    of_job: List[Path] = [path for path in folders if not target or path.name.endswith(f"-{target.partition('.')[0]}")]
    return Run(of_job[-1]) if of_job else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _json(path: Path) -> Dict[str, Any]:
    return _parsed(_text(path))


def _last_record(path: Path) -> Dict[str, Any]:
    """Return the last whole line of a metrics.jsonl; {} if there is none."""
    records = (_parsed(line) for line in reversed(_text(path).splitlines()))
    return next((record for record in records if record), {})


def _parsed(text: str) -> Dict[str, Any]:
    try:
        return dict(json.loads(text))
    except ValueError:  # nothing, or being written
        return {}
