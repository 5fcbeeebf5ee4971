"""gpu_usage.py PID: sample the utilization and memory of this node's GPUs every 10 s until the process PID ends.

Writes RUN_DIR/logs/ATTEMPT/gpus.HOST.PID for account.bash, one line per GPU: BUS_ID SAMPLES BUSY USED TOTAL. BUSY is
the sum of the samples in percent. USED is the peak memory and TOTAL the GPU's memory, in MiB. The file is rewritten at
each sample, so that the samples count however the job ends. Without a driver or a readable GPU, there is no file.

Reads NVML, the driver's own library, with the standard library only, because users' images may lack nvidia-ml-py. NVML
uses no memory of a GPU and starts nothing on it. Its numbers are those of the whole GPU, other jobs included. It
reports no utilization for a GPU that is divided into MIG slices: such a GPU is left out.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

INTERVAL = 10.0
"""Seconds between two samples."""
POLL = 1.0
"""Seconds between two checks whether the process still runs."""
MEBIBYTE = 1 << 20


class Utilization(ctypes.Structure):
    """``nvmlUtilization_t`` of nvml.h: percent of the last second, or less, during which a kernel ran."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Memory(ctypes.Structure):
    """``nvmlMemory_t`` of nvml.h, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpu:
    """A GPU and its samples."""

    def __init__(self, bus_id: bytes, handle: ctypes.c_void_p) -> None:
        """Start with no samples."""
        self.bus_id, self.handle = bus_id, handle
        self.samples = self.busy = self.used = self.total = 0

    def sample(self, nvml: Any) -> None:
        """Add a sample, unless the driver reports an error."""
        utilization, memory = Utilization(), Memory()
        if nvml.nvmlDeviceGetUtilizationRates(self.handle, ctypes.byref(utilization)) == 0 and (
            nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory)) == 0
        ):
            self.samples += 1
            self.busy += utilization.gpu
            self.used = max(self.used, memory.used // MEBIBYTE)
            self.total = memory.total // MEBIBYTE

    def __str__(self) -> str:
        return f"{self.bus_id.decode()} {self.samples} {self.busy} {self.used} {self.total}\n"


class Command:
    """The process that this one watches."""

    def __init__(self, pid: int) -> None:
        """Read when the process was started."""
        self.pid = pid
        self._started = self._start()
        self._end = None
        with suppress(OSError, AttributeError):  # before Linux 5.3, or Python 3.9
            self._end = os.pidfd_open(pid)

    def lives(self) -> bool:
        """Return whether the process still runs."""
        return bool(self._started) and self._start() == self._started

    def wait(self, *descriptors: int) -> bool:
        """Wait until the process ends, ``descriptors`` can be read or POLL has passed; return whether they can be read.

        This process must end directly after the other one, because the container stays mounted until both have ended.
        """
        ends = [] if self._end is None else [self._end]
        ready = select.select([*descriptors, *ends], [], [], min(POLL, INTERVAL))[0]
        return bool({*ready} & {*descriptors})

    def _start(self) -> str:
        """Return when the process was started, in the kernel's clock ticks; "" if it has ended."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""
        fields = text.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]


def visible(most: int) -> list[bytes]:
    """Return the bus IDs of the first ``most`` GPUs in CUDA_VISIBLE_DEVICES, which only CUDA parses correctly."""
    cuda = ctypes.CDLL("libcuda.so.1")
    count, device, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(32)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [
        text.value
        for ordinal in range(min(count.value, most))
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) == 0
        and cuda.cuDeviceGetPCIBusId(text, len(text), device) == 0
    ]


def visible_in_child(most: int, command: Command) -> list[bytes]:
    """Call ``visible`` in a child process, whose end frees the host memory that CUDA allocates."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(OSError, AttributeError):  # no driver, or another library with this name
            os.write(writer, b"\n".join(visible(most)))
        os._exit(0)
    os.close(writer)
    while not command.wait(reader):
        if not command.lives():
            os.kill(child, signal.SIGKILL)
            break
    with os.fdopen(reader, "rb") as file:
        found = file.read().split()
    os.waitpid(child, 0)
    return found


def open_gpus(nvml: Any, bus_ids: list[bytes]) -> list[Gpu]:
    """Return the GPUs for which NVML reports a utilization."""
    nvml.nvmlInit_v2()
    gpus = []
    for bus_id in bus_ids:
        handle, mig = ctypes.c_void_p(), ctypes.c_uint()
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id, ctypes.byref(handle)):
            continue
        with suppress(AttributeError):  # a driver older than MIG
            nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(mig), ctypes.byref(ctypes.c_uint()))
        if not mig.value:
            gpus.append(Gpu(bus_id, handle))
    return gpus


def watch(nvml: Any, gpus: list[Gpu], path: Path, command: Command) -> None:
    """Sample the GPUs and rewrite the file ``path`` until the process has ended."""
    due, descriptor = time.monotonic() + INTERVAL, None
    while command.lives():
        if time.monotonic() >= due:
            due = time.monotonic() + INTERVAL
            for gpu in gpus:
                gpu.sample(nvml)
            text = "".join(str(gpu) for gpu in gpus if gpu.samples)
            with suppress(OSError):  # the job reports a full disk elsewhere
                if text and descriptor is None:
                    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
                if descriptor is not None:  # in place: its numbers never decrease, so the text never gets shorter
                    os.pwrite(descriptor, text.encode(), 0)
        command.wait()


def detach_from_others() -> None:
    """Close inherited descriptors, lower the priority, and ignore the signals after which ranks still save."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    for path in list(Path("/proc/self/fd").iterdir()):  # a process at the other end may wait until they are closed
        if int(path.name) > 2:  # noqa: PLR2004 -- keep standard input, output and error
            with suppress(OSError):  # the descriptor of iterdir itself
                os.close(int(path.name))
    os.nice(19)


def main() -> None:
    """Sample the visible GPUs until the process ends."""
    detach_from_others()
    command = Command(int(sys.argv[1]))
    per_node, ranks, per_rank = (
        int(os.environ.get(name) or 0) for name in ("GPUS_PER_NODE", "TRAINER_RANKS_PER_NODE", "DEVICES_PER_RANK")
    )
    bus_ids = visible_in_child(per_node or ranks * per_rank, command)
    if not bus_ids:
        return
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        gpus = open_gpus(nvml, bus_ids)
    except (OSError, AttributeError):  # no such library, or another one with this name
        return
    if gpus:
        folder = Path(os.environ["RUN_DIR"], "logs", os.environ["TRAINER_ATTEMPT"])
        watch(nvml, gpus, folder / f"gpus.{socket.gethostname()}.{command.pid}", command)


if __name__ == "__main__":
    main()
