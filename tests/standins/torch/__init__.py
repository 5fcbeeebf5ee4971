"""Stands in for a torch built for GPUs: for CUDA STANDIN_TORCH, such as 13.2, or for AMD's, with "rocm".

It sees the GPUs of the stand-in for libcuda (libcuda.c), if the driver is one for its CUDA.
"""

import ctypes
import os
from types import SimpleNamespace

_built = os.environ["STANDIN_TORCH"]
_is_rocm = _built == "rocm"
_kernels = {"12": ["sm_70", "sm_80", "sm_90", "sm_100"], "13": ["sm_80", "sm_90", "sm_100"]}

__version__ = f"2.99+{_built}"
version = SimpleNamespace(cuda=None if _is_rocm else _built, hip="7.0" if _is_rocm else None)


def _init():
    if os.environ.get("STANDIN_TORCH_FAULT"):
        raise RuntimeError(os.environ["STANDIN_TORCH_FAULT"])


def _device_count():
    driver, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    if not _is_rocm and number.value // 1000 < int(_built.split(".")[0]):
        return 0
    driver.cuDeviceGetCount(ctypes.byref(number))
    return number.value


cuda = SimpleNamespace(
    init=_init, device_count=_device_count, get_arch_list=lambda: _kernels.get(_built.split(".")[0], [])
)
