"""Runs the trainer with batches read ahead on the CPU as for a GPU: the first argument is their number."""

import runpy
import sys

from slipway.data import device_batches

if __name__ == "__main__":
    device_batches.AHEAD["cpu"] = int(sys.argv.pop(1))
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
