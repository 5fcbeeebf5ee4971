"""What the text of a script tells about its run: whether its ranks train together, and whether it can continue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Optional

from slipway.base.bounded_read import read_head

LIMIT = 1 << 20
"""Maximum bytes that are read."""
PARALLEL = (
    r"\b(DistributedDataParallel|FullyShardedDataParallel|fully_shard|init_process_group|torch\.distributed|horovod"
    r"|accelerate|lightning|pytorch_lightning|deepspeed|transformers|ignite|composer|jax)\b"
)
"""Words of scripts whose ranks form a group."""
SESSION = r"\bslipway\b"
IMPORTS = r"(?m)^[ \t]*(?:from|import)[ \t]+(\.*)(\w*)"


class Source(NamedTuple):
    """Facts about a script; None: unknown, because it imports modules that are next to it, or cannot be read."""

    is_parallel: Optional[bool] = None
    has_session: Optional[bool] = None


def read_source(script: Optional[Path]) -> Source:
    """Return the facts about ``script``; None: a module whose file is not here."""
    if not script:
        return Source()
    try:
        text = read_head(str(script), limit=LIMIT).decode(errors="replace")
    except (OSError, ValueError):
        return Source()
    folder = script.resolve().parent
    is_alone = not any(
        dots or (folder / name).is_dir() or (folder / f"{name}.py").is_file()
        for dots, name in re.findall(IMPORTS, text)
    )
    unknown = False if is_alone else None
    return Source(
        is_parallel=True if re.search(PARALLEL, text) else unknown,
        has_session=True if re.search(SESSION, text) else unknown,
    )
