"""Make `import torchvision` work where its wheel was built for CUDA and torch was not.

PyPI holds only CUDA builds of torchvision. Their compiled operators do not load with a CPU build of torch, and then the
import itself fails, in every program: `operator torchvision::nms does not exist`. Models, transforms and data sets
need none of the operators, so it is enough to declare the two for which torchvision registers meta kernels. Calling
one still raises. Lines are appended to the installed package, which do nothing where the operators do load.
"""

import importlib.util
from pathlib import Path

LINES = """

# Added by Slipway, containers/install/torchvision_on_cpu.py.
if not _has_ops():
    _declared = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

spec = importlib.util.find_spec("torchvision")
if spec and spec.origin:  # `make wheelhouse` downloads it and installs nothing
    module = Path(spec.origin).with_name("extension.py")
    text = module.read_text(encoding="utf-8")
    if LINES not in text:
        module.write_text(text + LINES, encoding="utf-8")
