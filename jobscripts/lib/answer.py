"""File format in which a program of this folder returns its answer to a job script, separate from the image's output.

The file contains words, each terminated by NUL: first the number of words in the file, then the answer, then ``end``,
so that the script detects an incomplete file. The script makes the file itself, because NFS shows a new file late.
Standard library only.
"""

import os
from pathlib import Path


def write_answer(path: str, *words: str) -> None:
    """Write ``words`` as the answer to the file ``path``."""
    whole = (str(len(words) + 2), *words, "end")
    Path(path).write_bytes(b"".join(os.fsencode(word) + b"\0" for word in whole))
