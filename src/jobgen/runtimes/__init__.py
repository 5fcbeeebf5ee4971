"""Container runtimes: what runs the image, as words of a job script.

Each module of this package is one, with its ``CONTAINER``; everything else sees only the class below. The rest is Bash,
``jobscripts/lib/<library>.bash``: check_image, image_runs and set_bind_options (docs/adding.md).
"""

from __future__ import annotations

import re
from typing import ClassVar, Dict, List, Tuple

from jobgen.base import registry
from jobgen.base.job import Job
from jobgen.base.shell import Expansion, Word, array

IN_CONTAINER: List[Word] = [array("container")]
"""What stands before a command that runs in the image: nothing in a virtual environment."""
IMAGE = Expansion('"$image"')


class Container:
    """What a job script says of a container runtime."""

    name: str
    """As in a site's ``container``, and of the module; the command, unless the library calls another."""
    library: str
    """File of the library that holds its functions."""
    gpu_options: ClassVar[Dict[str, Tuple[str, ...]]] = {"nvidia": (), "amd": ()}
    """Its options for a node's GPUs and their driver."""
    of_launcher = ""
    """The launcher whose options start the container; "": it is a command, which any launcher can start."""
    runs_sif = False
    """Whether it runs a SIF, which ``image_build.job`` makes."""
    inspect: Tuple[str, ...] = ()
    """The command that prints the labels of an image file, before the file's name; none: no file has labels."""
    mounts_squashfs = False
    """Whether it mounts a squashfs image as a folder inside: data of a job. Its library has ``image_mount`` then."""
    needs: str
    """Which version."""

    def words(self, options: List[Word]) -> List[Word]:
        """Return the command that runs in the image whatever follows it; it includes the array ``binds``.

        ``options`` are the site's, then those for GPUs.
        """
        raise NotImplementedError

    def runs_file(self, image: str) -> bool:
        """Return whether ``image`` is a file or folder; otherwise it is a name in a registry."""
        return not re.search(r"://|^[a-z]+-archive:|^localhost/", image)


def container_names() -> List[str]:
    """Return the names that ``container`` of a site may have, besides none."""
    return registry.names(__name__)


def container_of(name: str) -> Container:
    """Return the runtime of that name; of "none" Apptainer, as USE_CONTAINER=1 can still be set."""
    container: Container = registry.load(__name__, "apptainer" if name == "none" else name, "CONTAINER")
    return container


def gpu_options(job: Job) -> Tuple[str, ...]:
    """Return the options by which the job's container sees the GPUs."""
    return container_of(job.site.container).gpu_options.get(job.site.accelerator, ())


def container_words(job: Job) -> List[Word]:
    """Return the elements of ``container``, the words before a command."""
    options: List[Word] = [array("container_options")] if job.site.container_options else []
    return container_of(job.site.container).words([*options, *gpu_options(job)])
