"""Runs a program; what its rank 0 writes to standard output goes into a file, line by line, apart from the log.

python stdout_to.py FILE PROGRAM...
"""

import os
import sys

if __name__ == "__main__":
    import forkserver

    if os.environ.get("RANK", "0") == "0":
        os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        sys.stdout.reconfigure(line_buffering=True)
    forkserver.run_program(sys.argv[2:])
