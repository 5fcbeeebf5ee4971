"""check_gpus.py DEVICE: check without torch that the NVIDIA driver works and shows a GPU. Standard library only.

DEVICE is cuda, with which a missing GPU is an error, or auto, with which it is not. Exits with 78 and a one-line error.
"""

import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH omits it
sys.dont_write_bytecode = True  # the run folder's library is compared to others, and may be read-only

from slipway_gpu import find_gpus  # noqa: E402

EXIT_CONFIG = 78


def fault() -> "tuple[str, str]":
    """Return the slug and text of an error with this node's GPUs; both are "" without an error, and for AMD's GPUs."""
    if Path("/dev/kfd").exists():
        return "", ""
    gpus = find_gpus()
    if gpus is None:
        return "no-gpu", "the NVIDIA driver (libcuda.so.1) is missing"
    if gpus.fault:
        return "broken-gpu", f"the driver does not start: {gpus.fault}"
    return ("", "") if gpus.capabilities else ("no-gpu", "the driver shows no GPU")


def main() -> int:
    """Print the error if GPUs are required; return the exit code."""
    slug, text = fault()
    if slug and sys.argv[1] == "cuda":
        said = f"SLIPWAY_DEVICE=cuda, but {text}: request GPUs from the scheduler, or set SLIPWAY_DEVICE=cpu"
        print(f"preflight: {socket.gethostname()}: error[{slug}]: {said}", file=sys.stderr)
        return EXIT_CONFIG
    return 0


if __name__ == "__main__":
    sys.exit(main())
