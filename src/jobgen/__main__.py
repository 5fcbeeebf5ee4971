"""Entry point of ``python -m jobgen``."""

import sys

from jobgen.cli import main

if __name__ == "__main__":
    sys.exit(main())
