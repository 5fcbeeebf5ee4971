"""check_gpus.py DEVICE: see that the NVIDIA driver answers and shows a GPU, without torch. Standard library only.

DEVICE is cuda, where a missing GPU is an error, or auto, where it is none. Ends with 78 and a line on what is wrong.
"""

import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # which PYTHONSAFEPATH leaves out
sys.dont_write_bytecode = True  # a run folder's library is compared, and may be read-only

from slipway_gpu import find_gpus  # noqa: E402

EXIT_CONFIG = 78


def fault() -> "tuple[str, str]":
    """Return slug and text of what is wrong with the GPUs of this node: "" if nothing is, or if they are AMD's."""
    if Path("/dev/kfd").exists():
        return "", ""
    gpus = find_gpus()
    if gpus is None:
        return "no-gpu", "there is no NVIDIA driver (libcuda.so.1)"
    if gpus.fault:
        return "broken-gpu", f"the driver does not start: {gpus.fault}"
    return ("", "") if gpus.capabilities else ("no-gpu", "the driver shows no GPU")


def main() -> int:
    """Print the fault where GPUs are wanted."""
    slug, text = fault()
    if slug and sys.argv[1] == "cuda":
        said = f"SLIPWAY_DEVICE=cuda, but {text}: ask the scheduler for GPUs, or set SLIPWAY_DEVICE=cpu"
        print(f"preflight: {socket.gethostname()}: error[{slug}]: {said}", file=sys.stderr)
        return EXIT_CONFIG
    return 0


if __name__ == "__main__":
    sys.exit(main())
