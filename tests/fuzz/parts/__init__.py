"""The parts of random scripts, in the order in which they are drawn."""

from parts import loops, models, optimizers, around, limits  # noqa: F401, I001 -- in this order: each sees what was drawn before
