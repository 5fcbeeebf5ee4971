"""Podman, rootless."""

from __future__ import annotations

from typing import ClassVar, Dict, List, Tuple

from jobgen.base.shell import Expansion, Word, array
from jobgen.runtimes import IMAGE, Container


class Podman(Container):
    """Podman 4 or later.

    NVIDIA's GPUs come by CDI, which `nvidia-ctk cdi generate` describes on each node; AMD's are plain devices.
    """

    name = "podman"
    library = "podman"
    gpu_options: ClassVar[Dict[str, Tuple[str, ...]]] = {
        "nvidia": ("--device=nvidia.com/gpu=all",),
        "amd": ("--device=/dev/kfd", "--device=/dev/dri"),
    }
    needs = "Podman 4"

    def words(self, options: List[Word]) -> List[Word]:
        """Return ``podman run``, by a script that passes the variables on, and the first process in the container."""
        run: List[Word] = [
            "bash", Expansion('"$lib/podman_run.bash"'), "--rm", "--network=host", "--ipc=host", "--cgroups=no-conmon",
            "--security-opt=label=disable", "--ulimit=host", "--entrypoint=", Expansion('--workdir="$PWD"'),
            Expansion('--label=slipway="$scratch"'),
        ]  # fmt: skip
        return [*run, *options, array("binds"), IMAGE, "sh", Expansion('"$lib/podman_init.sh"')]


CONTAINER = Podman()
