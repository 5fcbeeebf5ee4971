"""Run a program and redirect the standard output of its rank 0 to a file, line by line, separate from the log.

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
