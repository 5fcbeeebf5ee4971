"""The file in which a program of this folder leaves its answer to a job script: what an image prints is no part of it.

The words are each ended by NUL; before them stands how many words the file holds, and after them ``end``, so that the
script knows a file that was not written to its end. The script has made the file: a new one would be seen late on NFS.
Standard library only.
"""

import os
from pathlib import Path


def leave_answer(path: str, *words: str) -> None:
    """Write ``words`` to the file ``path``."""
    whole = (str(len(words) + 2), *words, "end")
    Path(path).write_bytes(b"".join(os.fsencode(word) + b"\0" for word in whole))
