"""The parts of random scripts, in the order in which they are drawn: each can depend on earlier draws."""

from parts import loops  # isort: skip
from parts import models  # isort: skip
from parts import optimizers  # isort: skip
from parts import around  # isort: skip
from parts import changes  # isort: skip
from parts import limits  # isort: skip

__all__ = ["around", "changes", "limits", "loops", "models", "optimizers"]
