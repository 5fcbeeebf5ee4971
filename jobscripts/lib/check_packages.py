"""check_packages.py: print which packages the trainer needs and this Python lacks, and end with 78 if there are any.

Standard library only. The names are those of the extra ``train`` in pyproject.toml, and the trainer itself.
"""

import importlib.util
import sys

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
"""Modules, and the distributions that bring them."""


def main() -> int:
    """Print the missing ones on one line."""
    if sys.version_info < (3, 11):
        print(f"Python 3.11 (it is {sys.version.split()[0]})")
        return 78
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    print(", ".join(missing))
    return 78 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
