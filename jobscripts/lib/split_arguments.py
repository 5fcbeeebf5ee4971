"""split_arguments.py ANSWER TEXT: split TEXT as a shell does, and leave in the file ANSWER ``words`` and the words.

Or ``unclosed`` if a quote is not closed. Standard library only.
"""

import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # which PYTHONSAFEPATH leaves out
sys.dont_write_bytecode = True  # a run folder's library is compared, and may be read-only

from answer import leave_answer  # noqa: E402


def main() -> int:
    """Split."""
    try:
        words = ["words", *shlex.split(sys.argv[2])]
    except ValueError:
        words = ["unclosed"]
    leave_answer(sys.argv[1], *words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
