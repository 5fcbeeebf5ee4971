"""lightning_ddp.py where the only torchvision, which Lightning imports, is the one of PyPI, built for CUDA."""

import runpy
from pathlib import Path

from trainer.torchvision_on_cpu import import_torchvision

import_torchvision()
runpy.run_path(str(Path(__file__).with_name("lightning_ddp.py")), run_name="__main__")
