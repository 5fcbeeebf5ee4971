"""Container runtimes: the part of job scripts that runs commands in the image.

Each module of this package defines a runtime as ``CONTAINER``. Other code uses only the class ``Container``. The Bash
part is ``jobscripts/lib/<library>.bash``: check_image, image_runs and set_container (docs/adding.md).
"""

from __future__ import annotations

import re
from typing import ClassVar, Dict, List, Tuple

from jobgen.model import registry
from jobgen.model.job import Job
from jobgen.model.shell import Word, array

IN_CONTAINER: List[Word] = [array("container")]
"""Words before a command that runs in the image; in a virtual environment the array is empty."""


class Container:
    """The runtime-specific part of job scripts."""

    name: str
    """Name in a site's ``container`` and of the module; also the command, unless the library calls another."""
    library: str
    """Library file with its functions."""
    gpu_options: ClassVar[Dict[str, Tuple[str, ...]]] = {"nvidia": (), "amd": ()}
    """Options that give the container a node's GPUs and their driver."""
    of_launcher = ""
    """Launcher whose options start the container; "": the runtime is a command that any launcher can start."""
    runs_sif = False
    """Whether it runs a SIF, which ``image_build.job`` builds."""
    inspect: Tuple[str, ...] = ()
    """Command that prints an image file's labels; the file's name follows it. (): image files have no labels."""
    mounts_squashfs = False
    """Whether it can mount a squashfs image with data as a folder; if so, its library has ``image_mount``."""
    needs: str
    """Required version."""

    def runs_file(self, image: str) -> bool:
        """Return whether ``image`` is a file or folder, not a name in a registry."""
        return not re.search(r"://|^[a-z]+-archive:|^localhost/", image)


def container_names() -> List[str]:
    """Return the valid values of a site's ``container`` besides "none"."""
    return registry.names(__name__)


def container_of(name: str) -> Container:
    """Return the runtime ``name``; for "none" return Apptainer, because users can still set USE_CONTAINER=1."""
    container: Container = registry.load(__name__, "apptainer" if name == "none" else name, "CONTAINER")
    return container


def use_container(job: Job) -> List[Word]:
    """Return the call of use_container: options for the GPUs, then "--" and the site's bind paths if it has any."""
    options = container_of(job.site.container).gpu_options.get(job.site.accelerator, ())
    return ["use_container", *options, "--", *job.site.binds] if job.site.binds else ["use_container", *options]
