"""check_gpus.py DEVICE: see that the NVIDIA driver answers and shows a GPU, without torch. Standard library only.

DEVICE is cuda, where a missing GPU is an error, or auto, where it is none. Ends with 78 and a line on what is wrong.
"""

import ctypes
import socket
import sys
from pathlib import Path

EXIT_CONFIG = 78
NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE of cuda.h."""


def fault() -> str:
    """Return what is wrong with the GPUs of this node, or "" if nothing is, or if they are AMD's."""
    if Path("/dev/kfd").exists():
        return ""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1)"
    code = driver.cuInit(0)
    if code == NO_DEVICE:
        return "the driver shows no GPU"
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        return f"the driver does not start: {(text.value or b'error').decode()} ({code})"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if count.value else "the driver shows no GPU"


def main() -> int:
    """Print the fault where GPUs are wanted."""
    found = fault()
    if found and sys.argv[1] == "cuda":
        remedy = "ask the scheduler for GPUs, or set SLIPWAY_DEVICE=cpu"
        print(f"preflight: {socket.gethostname()}: SLIPWAY_DEVICE=cuda, but {found}: {remedy}", file=sys.stderr)
        return EXIT_CONFIG
    return 0


if __name__ == "__main__":
    sys.exit(main())
