"""Startup time by phase."""

import json
import subprocess
import sys

FORKS = """
import json, os, time
from slipway.base import startup_time

time.sleep(0.2)
startup_time.mark(startup_time.IMPORTS)
if not os.fork():
    time.sleep(0.1)
    startup_time.mark(startup_time.MODEL)
    startup_time.mark(startup_time.MODEL)
    age = startup_time.age_of_this_process()
    first = startup_time.end()
    time.sleep(0.5)
    startup_time.restart()
    startup_time.mark(startup_time.IMPORTS)
    print(json.dumps([first, age, startup_time.end()]), flush=True)
    os._exit(0)
os.wait()
"""


def test_forked_rank_includes_startup_time_of_parent_until_restart():
    first, age, second = json.loads(subprocess.check_output([sys.executable, "-c", FORKS], text=True))
    assert [*first] == ["imports", "model", "first step"]
    assert first["imports"] >= 0.2
    assert 0.1 <= first["model"] <= age + 0.1
    assert [*second] == ["imports", "first step"]
    assert sum(second.values()) < 0.2
