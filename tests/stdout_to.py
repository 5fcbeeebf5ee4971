"""Runs a program whose standard output goes into a file, apart from its log.

python stdout_to.py FILE PROGRAM...
"""

import os
import sys

if __name__ == "__main__":
    import forkserver

    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    sys.stdout.reconfigure(write_through=True)
    forkserver.run_program(sys.argv[2:])
