"""jobscripts/ddp.sh on this machine, as a user starts it: trained, stopped by a file, and continued."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from support import ROOT


def run(words, tmp_path, *, code) -> str:
    """Run a command in a folder of its own, with this Python's environment for SLIPWAY_VENV; return what it printed."""
    venv = Path(sys.executable).parents[1]
    settings = {"USE_CONTAINER": "0", "SLIPWAY_VENV": str(venv), "SLIPWAY_OUTPUT": str(tmp_path / "runs")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    done = subprocess.run(
        words, cwd=ROOT, env=clean | settings, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_ddp_sh_trains_and_job_sh_resumes(tmp_path, device, record):
    run([ROOT / "jobscripts" / "ddp.sh", "--epochs", "3", "--stop-epoch", "2"], tmp_path, code=0)
    [folder] = (tmp_path / "runs").iterdir()
    run(["bash", folder / "job.sh", "--epochs", "3"], tmp_path, code=0)
    launched = json.loads((folder / "run.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [line["epoch"] for line in lines if line["kind"] == "validation"]
    record(ranks=launched["world_size"], device=launched["launch"]["device"])
    assert launched["launch"]["device"] == device
    assert launched["world_size"] == (torch.cuda.device_count() or 2)
    assert epochs == [1.0, 2.0, 3.0]
