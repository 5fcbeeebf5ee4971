"""What README.md tells people to run: the rows of its tables, and its example of a script."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = (ROOT / "README.md").read_text(encoding="utf-8").partition("## I want to ...\n")[2].partition("\n## ")[0]
COMMANDS = [
    command for cell in re.findall(r"(?m)^\| .* \| (`.*) \|$", WANTED) for command in re.findall(r"`([^`]+)`", cell)
]
SCRIPT = WANTED.partition("```python\n")[2].partition("```")[0]

ELSEWHERE = {
    "make wheelhouse": "tests/cluster/test_builds.py",
    "WHEELHOUSE=wheelhouse VENV=.venv-nodes sbatch jobscripts/venv_build.job": "tests/cluster/test_builds.py",
    "sbatch jobscripts/image_build.job": "tests/stubrun/test_builds.py",
}
"""Commands that take minutes, and the tests that run them in their own way."""
ON_CLUSTER = [
    command
    for command in COMMANDS
    if ("sbatch" in command or re.match("jobgen (submit|status|logs|cancel)", command)) and command not in ELSEWHERE
]
HERE = [command for command in COMMANDS if command not in ON_CLUSTER and command not in ELSEWHERE]
