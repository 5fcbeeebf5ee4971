"""Query driver and GPUs through libcuda, and determine the image variant that runs on them.

This module imports only the standard library and supports Python 3.9. ``jobgen`` imports it on a login node,
build/variant runs it before an environment exists, and job scripts run it in any image, which may lack slipway:
build/generate copies this file to jobscripts/lib/slipway_gpu.py.

Sources: NVIDIA, CUDA Compatibility (minor versions: a program built with any CUDA X.y runs on every driver for CUDA X),
and CUDA C++ Programming Guide (binary and PTX compatibility).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from types import ModuleType
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

Version = Tuple[int, int]

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR of cuda.h
_NO_FAULT = (0, 34, 100)  # CUDA_SUCCESS, CUDA_ERROR_STUB_LIBRARY, CUDA_ERROR_NO_DEVICE


class Gpus(NamedTuple):
    """A machine's driver and GPUs, as libcuda reports them."""

    cuda: Version
    """Newest CUDA version that the driver supports, such as (12, 2)."""
    capabilities: List[Version]
    """Compute capability of each GPU that CUDA_VISIBLE_DEVICES shows, such as [(8, 0), (8, 0)]."""
    fault: str = ""
    """The driver's error if it does not start; "" if it does, or if it has no GPU."""


class Variant(NamedTuple):
    """Requirements of an image variant."""

    cuda: Version
    """Oldest CUDA version that the driver must support."""
    driver: int
    """First driver branch with this CUDA version, from NVIDIA's CUDA Toolkit Release Notes."""
    architectures: Tuple[str, ...]
    """Architectures for which it has kernels: ``torch.cuda.get_arch_list()``."""


VARIANTS: Dict[str, Variant] = {
    "cuda": Variant((13, 0), 580, ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")),
    "cuda12": Variant((12, 0), 525, ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")),
}
"""Newest first; a test compares them with containers/pins and with the output of the images' own test."""
BLACKWELL = (10, 0)
BLACKWELL_DRIVER = Variant((12, 8), 570, ())
"""GPUs from BLACKWELL on need this driver, whatever the image requires."""


def find_gpus(library: str = "libcuda.so.1") -> Optional[Gpus]:
    """Return this machine's driver and GPUs, as ``library`` reports them; None without a driver."""
    try:
        cuda = ctypes.CDLL(library)
        return _ask(cuda)
    except (OSError, AttributeError):  # no such library, or another library of this name
        return None


def _ask(cuda: ctypes.CDLL) -> Gpus:
    number = ctypes.c_int()

    def ask(function: str, *arguments: object) -> int:
        code = getattr(cuda, function)(ctypes.byref(number), *arguments)
        return number.value if code == 0 else 0

    version = ask("cuDriverGetVersion")
    code = cuda.cuInit(0)
    count = 0 if code else ask("cuDeviceGetCount")
    devices = [ask("cuDeviceGet", index) for index in range(count)]
    major, minor = ([ask("cuDeviceGetAttribute", part, device) for device in devices] for part in (_MAJOR, _MINOR))
    capabilities = [found for found in zip(major, minor) if found != (0, 0)]
    return Gpus((version // 1000, version % 1000 // 10), capabilities, _fault(cuda, code))


def _fault(cuda: ctypes.CDLL, code: int) -> str:
    """Return the driver's message for ``code`` from cuInit; "" if it is not a fault."""
    if code in _NO_FAULT:
        return ""
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(code, ctypes.byref(text))
    return f"{(text.value or b'error').decode(errors='replace')} ({code})"


def query_gpus_in_child(timeout: float = 20) -> Optional[Gpus]:
    """Return this machine's GPUs and their driver; None without a GPU or a working driver."""
    found = query_driver_in_child(timeout)
    return found if found and found.capabilities else None


def query_driver_in_child(timeout: float = 20) -> Optional[Gpus]:
    """Return the result of ``find_gpus`` in a child process, because a damaged driver may hang."""
    words = [sys.executable, "-I", __file__]
    try:
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None
    try:
        said, _, fault = child.communicate(timeout=timeout)[0].partition("\n")
    except subprocess.TimeoutExpired:
        child.kill()  # not waited for: a process that hangs in the driver may not end
        return Gpus((0, 0), [], f"no answer within {timeout:.0f} s")
    versions = [(int(major), int(minor)) for major, minor in re.findall(r"(\d+)\.(\d+)", said)]
    return Gpus(versions[0], versions[1:], fault.strip()) if versions else None


def fits(variant: str, gpus: Gpus) -> bool:
    """Return whether ``variant`` runs on ``gpus``; True for a variant that is not in VARIANTS."""
    needs = VARIANTS.get(variant)
    if needs is None:
        return True
    driver_knows = max(gpus.capabilities) < BLACKWELL or BLACKWELL_DRIVER.cuda <= gpus.cuda
    return driver_knows and needs.cuda <= gpus.cuda and not _without_kernels(gpus, needs.architectures)


def advice(gpus: Gpus) -> str:
    """Return which variant to build for ``gpus``, or why none runs on them, as one clause."""
    for name in VARIANTS:
        if fits(name, gpus):
            return f"build the {name} variant (VARIANT={name})"
    every = [architecture for needs in VARIANTS.values() for architecture in needs.architectures]
    if unknown := _without_kernels(gpus, every):
        return (
            f"no variant has kernels for compute capability {_text(unknown[0])}: "
            "docs/howto/build-image.md describes how to build for another torch"
        )
    needs = BLACKWELL_DRIVER if max(gpus.capabilities) >= BLACKWELL else min(VARIANTS.values())
    return f"the driver must be of branch {needs.driver} or later (CUDA {_text(needs.cuda)})"


def mismatch(gpus: Gpus, cuda: str, architectures: Sequence[str]) -> str:
    """Return why a build of torch cannot use ``gpus``; "" if it can.

    Args:
        gpus: at least one GPU.
        cuda: ``torch.version.cuda`` of that build, such as "12.8".
        architectures: ``torch.cuda.get_arch_list()`` of that build, such as ["sm_80", "compute_90"].
    """
    needed = (int(cuda.partition(".")[0]), 0)
    if gpus.cuda < needed:
        return f"the driver supports CUDA {_text(gpus.cuda)} at most, but torch was built with {cuda}: {advice(gpus)}"
    without = _without_kernels(gpus, architectures) if architectures else []
    if not without:
        return ""
    others = "" if set(gpus.capabilities) <= set(without) else "; CUDA_VISIBLE_DEVICES can hide it from this job"
    return (
        f"torch has no kernels for a GPU of compute capability {_text(without[0])}, only "
        f"{', '.join(architectures)}: {advice(gpus)}{others}"
    )


def why_unusable(torch: ModuleType, gpus: Gpus) -> Tuple[str, str]:
    """Return slug and reason why a CUDA build of torch cannot use ``gpus``; both "" if it can, or without GPUs.

    torch itself is called last, because it warns of an old driver in four lines. The call opens the driver in this
    process.

    Args:
        torch: the module.
        gpus: this machine's driver and GPUs.
    """
    if gpus.fault:
        return "broken-gpu", f"this machine's NVIDIA driver does not start: {gpus.fault}; nvidia-smi may show more"
    if not gpus.capabilities:
        return "", ""
    why = mismatch(gpus, torch.version.cuda, [])
    if not why:
        try:
            torch.cuda.init()
        except RuntimeError as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            why = f"this machine has {describe(gpus)}, but torch cannot open them: {reason}; nvidia-smi may show more"
            return "broken-gpu", why
        why = mismatch(gpus, torch.version.cuda, torch.cuda.get_arch_list())
    return ("gpu-mismatch", why) if why else ("", "")


def _without_kernels(gpus: Gpus, architectures: Sequence[str]) -> List[Version]:
    """Return the compute capabilities of ``gpus`` on which no code for ``architectures`` runs."""
    every = sorted(set(gpus.capabilities))
    return [capability for capability in every if not any(_runs_on(name, capability) for name in architectures)]


def _runs_on(architecture: str, capability: Version) -> bool:
    """Return whether code for ``architecture`` runs on a GPU of ``capability``."""
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
    if not found:
        return True  # a newer kind of architecture than this code knows
    built = (int(found[2]), int(found[3]))
    if found[4] == "a":  # runs on exactly this architecture
        return built == capability
    if found[1] == "sm" or found[4] == "f":  # runs on this family
        return built[0] == capability[0] and built <= capability
    return built <= capability  # PTX is compiled when it is loaded


def describe(gpus: Gpus) -> str:
    """Return a phrase that describes the GPUs and their driver."""
    capabilities = ", ".join(_text(capability) for capability in sorted(set(gpus.capabilities)))
    return f"GPUs of compute capability {capabilities} and a driver for CUDA {_text(gpus.cuda)}"


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


if __name__ == "__main__":
    if here := find_gpus():
        sys.stdout.write(" ".join(map(_text, (here.cuda, *here.capabilities))) + f"\n{here.fault}\n")
