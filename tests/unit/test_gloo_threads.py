"""A rank waits at exit for threads with the name of Gloo's, while they run."""

import ctypes
import threading
import time

import pytest

from slipway.dist import gloo_threads

PR_SET_NAME = 15


def busy(name, over):
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
    while not over.is_set():
        pass


@pytest.mark.parametrize(("name", "waits"), [(gloo_threads.THREAD, True), ("another", False)])
def test_exit_waits_while_a_thread_of_gloo_runs(name, waits, monkeypatch):
    monkeypatch.setattr(gloo_threads, "LIMIT", 600.0)
    over, waited = threading.Event(), threading.Event()
    thread = threading.Thread(target=busy, args=(name, over))
    thread.start()
    time.sleep(0.1)
    waiter = threading.Thread(target=lambda: (gloo_threads._wait(), waited.set()))
    waiter.start()
    try:
        assert waited.wait(0.5 if waits else 300) is not waits
    finally:
        over.set()
    assert waited.wait(300)
    thread.join()
    waiter.join()


def test_exit_waits_no_longer_than_the_limit(monkeypatch):
    monkeypatch.setattr(gloo_threads, "LIMIT", 0.2)
    over = threading.Event()
    thread = threading.Thread(target=busy, args=(gloo_threads.THREAD, over))
    thread.start()
    try:
        gloo_threads._wait()
    finally:
        over.set()
    thread.join()
