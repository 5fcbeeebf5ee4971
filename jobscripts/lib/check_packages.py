"""check_packages.py ANSWER: write to the file ANSWER the packages that the trainer needs and this Python lacks.

Standard library only. The packages are those of the extra ``train`` in pyproject.toml, and the trainer itself.
"""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH omits it
sys.dont_write_bytecode = True  # the run folder's library is compared to others, and may be read-only

from answer import write_answer  # noqa: E402

NEEDED = {
    "trainer": "slipway-hpc (this project)",
    "msgspec": "msgspec",
    "torch": "torch",
    "torchvision": "torchvision",
    "numpy": "numpy",
    "jinja2": "jinja2",
    "matplotlib": "matplotlib",
    "PIL": "pillow",
    "safetensors": "safetensors",
    "tomli_w": "tomli-w",
    "tqdm": "tqdm",
}
"""Modules, and the distributions that contain them."""


def main() -> int:
    """Write the missing packages; return the exit code."""
    if sys.version_info < (3, 11):
        missing = [f"Python 3.11 (it is {sys.version.split()[0]})"]
    else:
        missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    write_answer(sys.argv[1], *missing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
