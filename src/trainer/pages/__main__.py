"""``python -m trainer.pages PATH...``."""

import sys

from trainer.pages import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
