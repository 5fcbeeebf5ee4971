"""GPU names of schedulers: Slurm's generic resources, and vendors by GPU name."""

from __future__ import annotations

import re
from typing import Iterable, List, NamedTuple, Sequence, Tuple

from jobgen.resolve.resolve import MIG_PROFILE

AMD = r"mi[0-9]{2,3}[a-z]?|instinct|radeon|gfx[0-9]{3,4}[a-z]?|rocm[0-9]*"
INTEL = r"pvc|ponte_?vecchio|max1[0-9]{3}|flex1[0-9]{2}|gaudi[0-9]?"
NVIDIA = (
    r"nvidia|tesla|geforce|quadro|titan|[rg]tx[ _-]?(?:a?[0-9]{3,4})?|dgx|hgx|cuda[0-9]*"
    r"|kepler|pascal|volta|turing|ampere|hopper|blackwell|g[hb][23]00|[kmp][1-9]0{1,2}|k20[cmx]?|k80|m2090|v100s?"
    r"|t4|t4000|l4|l40s?|a2|a10g?|a16|a30|a40|a[1458]00|a[2456]000|a4500|h20|h[1278]00|b[123]00|[0-9]g[._][0-9]+gb"
)
"""Patterns of GPUs, their generations and their software in types, features and properties of nodes."""


class Gpus(NamedTuple):
    """GPUs of one type in a node."""

    type: str
    """Type in the scheduler's terms; "" without types."""
    per_node: int

    @property
    def is_slice(self) -> bool:
        """Whether each is a slice of a GPU (MIG)."""
        return bool(re.search(MIG_PROFILE, self.type, flags=re.ASCII))


def gpus_of(gres: str) -> Tuple[Gpus, ...]:
    """Parse the GPUs of generic resources: ``gpu:a100:4(S:0-1),nvme:1``, ``gpu:2``, ``gpu:(null):3(IDX:0-2)``."""
    found: List[Gpus] = []
    for item in re.split(r",(?![^(]*\))", gres.replace("(null):", "")):
        name, *words = re.sub(r"\(.*", "", item).split(":")
        if name != "gpu":
            continue
        count = words.pop() if words and re.fullmatch("[0-9]{1,6}", words[-1]) else "1"
        kinds = [word for word in words if word != "no_consume"]
        if int(count) and all(re.fullmatch(r"[\w.+-]+", word, flags=re.ASCII) for word in kinds):
            found.append(Gpus(":".join(kinds), int(count)))
    return tuple(found)


def maker(names: Iterable[str]) -> str:
    """Return the GPU vendor ("amd", "intel", "nvidia") by types, features or properties; "" if unclear."""
    text = " ".join(names).lower()
    patterns: Sequence[Tuple[str, str]] = (("amd", AMD), ("intel", INTEL), ("nvidia", NVIDIA))
    makers = [name for name, pattern in patterns if re.search(rf"(?<![a-z0-9])(?:{pattern})(?![0-9])", text)]
    return makers[0] if len(makers) == 1 else ""
