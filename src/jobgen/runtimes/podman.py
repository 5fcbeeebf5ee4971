"""Container runtime Podman, rootless."""

from __future__ import annotations

from typing import ClassVar, Dict, Tuple

from jobgen.runtimes import Container


class Podman(Container):
    """Podman 4 or later.

    NVIDIA GPUs use CDI, whose specification `nvidia-ctk cdi generate` writes on each node; AMD GPUs are plain devices.
    """

    name = "podman"
    library = "podman"
    gpu_options: ClassVar[Dict[str, Tuple[str, ...]]] = {
        "nvidia": ("--device=nvidia.com/gpu=all",),
        "amd": ("--device=/dev/kfd", "--device=/dev/dri"),
    }
    needs = "Podman 4"


CONTAINER = Podman()
