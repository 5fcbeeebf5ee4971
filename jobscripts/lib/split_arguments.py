"""split_arguments.py ANSWER TEXT: split TEXT as a shell does, and write ``words`` and the words to the file ANSWER.

Writes ``unclosed`` if a quote is not closed. Standard library only.
"""

import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH omits it
sys.dont_write_bytecode = True  # the run folder's library is compared to others, and may be read-only

from answer import write_answer  # noqa: E402


def main() -> int:
    """Split TEXT and write the answer; return the exit code."""
    try:
        words = ["words", *shlex.split(sys.argv[2])]
    except ValueError:
        words = ["unclosed"]
    write_answer(sys.argv[1], *words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
