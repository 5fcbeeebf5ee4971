"""split_arguments.py TEXT: print the words of TEXT, split as by a shell, each ended by NUL. Standard library only."""

import shlex
import sys


def main() -> int:
    """Split, or end with 1 where a quote is not closed."""
    try:
        words = shlex.split(sys.argv[1])
    except ValueError:
        return 1
    sys.stdout.write("".join(f"{word}\0" for word in words))
    return 0


if __name__ == "__main__":
    sys.exit(main())
