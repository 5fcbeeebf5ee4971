"""Print the Slurm allocation of each rank's job step as a JSON line."""

import json
import os
import re
import subprocess
import sys

step = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
said = subprocess.run(["scontrol", "show", "step", step], check=True, capture_output=True, text=True).stdout
seen = {
    "rank": int(os.environ.get("RANK") or os.environ["SLURM_PROCID"]),
    "node": os.uname().nodename,
    "tres": re.search(r"TRES=(\S+)", said)[1],
    "cores": [os.environ["SLURM_CPUS_ON_NODE"], os.environ["SLURM_CPUS_PER_TASK"], len(os.sched_getaffinity(0))],
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "names": sorted(name for name in os.environ if re.match("SLURM_.*(BIND|PER_|HINT|GPU|ARRAY|HET|RESTART)", name)),
}
sys.stdout.write(f"SEEN {json.dumps(seen)}\n")
