"""Print the GPUs of each rank of a two-stage model as a JSON line.

There is no GPU here: torch is told that it sees those of CUDA_VISIBLE_DEVICES, and the trainer chooses among them.
"""

import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))  # from this checkout, whatever is installed

from slipway.base.environment import read_environment
from trainer.config.settings import Launch, ModelConfig, Settings
from trainer.parallel import device

visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
torch.cuda.device_count = lambda: len(visible)
torch.cuda.set_device = lambda _: None
device.check_gpus = lambda: None

environment, each = read_environment(os.environ), int(os.environ["DEVICES_PER_RANK"])
settings = Settings(model=ModelConfig(split="conv2"), launch=Launch(devices_per_rank=each))
first = device.pick_device(settings, environment.local_rank, environment.launcher)
stages = [stage.index for stage in device.stage_devices(settings, first)]
seen = {"node": os.uname().nodename, "rank": int(os.environ["RANK"]), "local_rank": environment.local_rank}
seen |= {"node_rank": os.environ.get("NODE_RANK"), "visible": visible, "takes": [visible[index] for index in stages]}
sys.stdout.write(f"DEVICES {json.dumps(seen)}\n")
sys.stdout.flush()
