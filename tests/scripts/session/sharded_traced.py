"""The script sharded.py, in which strace follows one thread of one rank during the attempt's second save.

    sharded_traced.py --rank RANK --thread NAME --log FILE [-e EXPRESSION ...] FLAGS OF SHARDED.PY

The thread waits until strace has attached to it, and strace follows no other thread: the calls that strace logs, counts
and injects faults into are those of the save alone.
"""

import argparse
import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import sharded

SECOND = 2


def trace(name, log, expressions):
    """Let strace follow the second thread with this name."""
    begun, run = itertools.count(1), threading.Thread.run

    def run_traced(thread):
        if thread.name == name and next(begun) == SECOND:
            attached = threading.Event()
            words = ["strace", "-q", "-o", log, *expressions, "-p", str(threading.get_native_id())]
            threading.Thread(target=attach, args=(words, attached)).start()
            assert attached.wait(300), "strace does not attach"
        run(thread)

    threading.Thread.run = run_traced


def attach(words, attached):
    """Run strace until its thread ends; set ``attached`` when it has attached."""
    pr_set_ptracer, anyone = 0x59616D61, -1  # prctl(2): lets strace attach if Yama restricts ptrace
    ctypes.CDLL(None).prctl(pr_set_ptracer, anyone)
    tracer = subprocess.Popen(words)
    status = Path(f"/proc/self/task/{words[-1]}/status")
    while "TracerPid:\t0" in status.read_text():
        assert tracer.poll() is None, "strace ended"
        time.sleep(0.002)
    attached.set()
    tracer.wait()


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--thread", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("-e", action="append", default=[])
    args, sys.argv[1:] = parser.parse_known_args()
    if os.environ["RANK"] == str(args.rank):
        trace(args.thread, args.log, [word for expression in args.e for word in ("-e", expression)])
    sharded.main()


if __name__ == "__main__":
    main()
