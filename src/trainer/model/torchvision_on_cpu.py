"""Import of torchvision that also works with a CUDA build of torchvision on a CPU build of torch.

PyPI holds only CUDA builds of torchvision. On a CPU build of torch their compiled operators do not load, and the import
fails when it registers a fake for ``torchvision::nms``. Models, transforms and datasets do not need these operators,
so it is enough to declare the two operators that the import refers to. ``ops.nms`` and ``io.decode_image`` still raise
when called. If the operators load, this module changes nothing.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType

import torch

from slipway.base.third_party_errors import is_operator_mismatch


@functools.cache
def import_torchvision() -> ModuleType:
    """Import torchvision and return the package."""
    try:
        import torchvision  # noqa: PLC0415 -- slow to import, and not every model or data set needs it
    except RuntimeError as error:
        if not is_operator_mismatch(error):
            raise
        return _import_without_operators()
    return torchvision


def _import_without_operators() -> ModuleType:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # partially imported
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: PLC0415

    torchvision._slipway_operators = library  # noqa: SLF001 -- the declarations live as long as this object
    return torchvision
