"""Container runtime Podman, rootless."""

from __future__ import annotations

from typing import ClassVar, Dict, List, Tuple

from jobgen.base.shell import Expansion, Word, array
from jobgen.runtimes import IMAGE, Container


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
    pulls_images = True
    image_source = "`podman build --tag slipway .` in a clone builds it"
    needs = "Podman 4"

    def words(self, options: List[Word]) -> List[Word]:
        """Return the script that executes ``podman run`` with the variables, and the container's first process."""
        run: List[Word] = [
            "bash", Expansion('"$lib/podman_run.bash"'), "--rm", "--network=host", "--ipc=host", "--cgroups=no-conmon",
            "--security-opt=label=disable", "--ulimit=host", "--entrypoint=", Expansion('--workdir="$PWD"'),
            Expansion('--label=slipway="$scratch"'),
        ]  # fmt: skip
        return [*run, *options, array("binds"), IMAGE, "sh", Expansion('"$lib/podman_init.sh"')]


CONTAINER = Podman()
