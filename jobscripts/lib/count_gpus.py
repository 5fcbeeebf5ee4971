"""count_gpus.py ANSWER: count the GPUs of this machine that the torch of this Python can use, for local.bash.

Writes COUNT and TEXT to the file ANSWER. TEXT contains torch's version, or the reason why COUNT is 0. Imports torch
only if the machine has GPUs or a driver that does not start. Exits with 78 and a one-line error on standard error if
torch is built for GPUs but cannot use those of the machine. The driver and torch handle CUDA_VISIBLE_DEVICES. Except
for torch, standard library only.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH omits it
sys.dont_write_bytecode = True  # the run folder's library is compared to others, and may be read-only

from answer import write_answer  # noqa: E402
from slipway_gpu import Gpus, advice, describe, find_gpus, why_unusable  # noqa: E402

EXIT_CONFIG = 78
AMD = Path("/dev/kfd")
"""Device file of AMD's compute driver."""


def count(gpus: Gpus | None, torch: ModuleType | None) -> tuple[int, str]:
    """Return the number of usable GPUs, and torch's version or the reason why there are none.

    Args:
        gpus: the GPUs that NVIDIA's driver shows; None without a driver.
        torch: the module; None if this Python does not have it.
    """
    if torch is None:  # a script for another framework: count the GPUs that the driver shows
        return len(gpus.capabilities) if gpus else 0, "torch is not installed"
    if torch.version.cuda or torch.version.hip:
        found = torch.cuda.device_count()
        return found, f"torch {torch.__version__}" if found else f"torch {torch.__version__} sees no GPU"
    why = f"torch {torch.__version__} is built for CPUs"
    if gpus and gpus.capabilities:
        return 0, f"{why}, and this machine has {describe(gpus)}: {advice(gpus)}"
    return 0, f"{why}, and the NVIDIA driver does not start: {gpus.fault}" if gpus and gpus.fault else why


def main() -> int:
    """Count the GPUs and write the answer; return the exit code."""
    gpus = find_gpus()
    found, text = 0, "no GPU is visible"
    if AMD.exists() or (gpus and (gpus.capabilities or gpus.fault)):
        try:
            torch = importlib.import_module("torch")
        except ImportError as error:
            if getattr(error, "name", "") != "torch":
                print(f"count_gpus: error[no-environment]: torch cannot be imported: {error}", file=sys.stderr)
                return EXIT_CONFIG
            torch = None
        slug, why = why_unusable(torch, gpus) if gpus and torch and torch.version.cuda else ("", "")
        if slug:
            print(f"count_gpus: error[{slug}]: {why}; SLIPWAY_DEVICE=cpu runs without GPUs", file=sys.stderr)
            return EXIT_CONFIG
        found, text = count(gpus, torch)
    write_answer(sys.argv[1], str(found), text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
