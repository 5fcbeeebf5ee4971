"""Randomly damaged files of a run: each program reports a one-line error or continues, and none hangs."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from support import DIGITS, ROOT, train

DRIVER = ROOT / "tests" / "malformed.py"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a folder with a configuration and its run."""
    folder = tmp_path_factory.mktemp("malformed")
    config = folder / "mine.toml"
    text = DIGITS.read_text().replace('"mnist-cnn"', '"mlp"')
    config.write_text(text.replace("epochs = 40", "epochs = 1").replace("batch_size = 64", "batch_size = 256"))
    train("single", 1, folder / "run", "--no-figures", config=config)
    return folder


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=[pytest.mark.prove, pytest.mark.timeout(7200)])])
def test_malformed_run_files_give_one_line_errors(finished, tmp_path, table, count):
    folder = shutil.copytree(finished, tmp_path / "copy", symlinks=True)
    words = [sys.executable, str(DRIVER), str(folder), str(count), str(count)]  # the seed differs too
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == count
    wrong = [case for case in cases if problem(case)]
    assert not wrong, "\n\n".join(f"{problem(case)}: {case | {'said': case['said'][-2000:]}}" for case in wrong)
    counts = Counter(case["code"] for case in cases)
    rows = [(f"exit {code}", f"{number} of {count}") for code, number in sorted(counts.items())]
    table("malformed files", [*rows, ("longest", f"{max(case['seconds'] for case in cases):.1f} s")])


def problem(case):
    """Return the fault in a program's response; "" if there is none."""
    said, code = case["said"], case["code"]
    last = (said.strip().splitlines() or [""])[-1]
    if code not in {0, 1, 2, 78}:
        return f"exit code {code}"
    if "Traceback" in said:
        return "a traceback"
    if code and not re.match(r"trainer: (\[rank \d+\] )?error\[[a-z-]+\]: ", last):
        return "the last line does not say what is wrong"
    if not all(letter.isprintable() or letter in "\n\t" for letter in said):
        return "control characters"
    return ""
