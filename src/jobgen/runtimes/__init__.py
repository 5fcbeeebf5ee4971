"""Container runtimes: the part of job scripts that runs commands in the image.

Each module of this package defines a runtime as ``CONTAINER``. Other code uses only the class ``Container``. The Bash
part is ``jobscripts/lib/<library>.bash``: check_image, image_runs and set_bind_options (docs/contributing/adding.md).
"""

from __future__ import annotations

import re
from typing import ClassVar, Dict, List, Tuple

from jobgen.base import registry
from jobgen.base.job import Job
from jobgen.base.shell import Expansion, Word, array

IN_CONTAINER: List[Word] = [array("container")]
"""Words before a command that runs in the image; in a virtual environment the array is empty."""
IMAGE = Expansion('"$image"')


class Container:
    """The runtime-specific part of job scripts."""

    name: str
    """Name in a site's ``container`` and of the module; also the command, unless the library calls another."""
    library: str
    """Library file with its functions."""
    gpu_options: ClassVar[Dict[str, Tuple[str, ...]]] = {"nvidia": (), "amd": ()}
    """Options that give the container a node's GPUs and their driver."""
    launcher_of_container = ""
    """Launcher whose options start the container; "": the runtime is a command that any launcher can start."""
    runs_sif = False
    """Whether it runs a SIF, which ``image_build.job`` builds; otherwise `jobgen submit image_build` is refused."""
    pulls_images = False
    """Whether ``SLIPWAY_IMAGE`` can be a name in a registry, from which each node downloads the image."""
    image_source: str
    """What makes an image, in comments and errors: ``image_build.job builds it``."""
    inspect: Tuple[str, ...] = ()
    """Command that prints an image file's labels; the file's name follows it. (): image files have no labels."""
    mounts_squashfs = False
    """Whether it can mount a squashfs image with data as a folder; if so, its library has ``image_mount``."""
    needs: str
    """Name and minimum version, for the header of scripts: ``Apptainer 1.1``."""

    def words(self, options: List[Word]) -> List[Word]:
        """Return the words before a command that run it in the image, with the elements of the array ``binds``.

        ``options``: the site's options, followed by those for GPUs. A word that the shell expands is an ``Expansion``
        or an ``array``; all other words are quoted where necessary.
        """
        raise NotImplementedError

    def runs_file(self, image: str) -> bool:
        """Return whether ``image`` is a file or folder, not a name in a registry."""
        return not re.search(r"://|^[a-z]+-archive:|^localhost/", image)


def container_names() -> List[str]:
    """Return the valid values of a site's ``container`` besides "none"."""
    return [*registry.names(__name__)]


def container_of(name: str) -> Container:
    """Return the runtime ``name``; for "none" return Apptainer, because users can still set USE_CONTAINER=1."""
    container: Container = registry.load(__name__, "apptainer" if name == "none" else name, "CONTAINER")
    return container


def gpu_options(job: Job) -> Tuple[str, ...]:
    """Return the options that give the job's container the GPUs."""
    return container_of(job.site.container).gpu_options.get(job.site.accelerator, ())


def container_words(job: Job) -> List[Word]:
    """Return the elements of the array ``container``: the words before a command that runs in the image."""
    options: List[Word] = [array("container_options")] if job.site.container_options else []
    return container_of(job.site.container).words([*options, *gpu_options(job)])
