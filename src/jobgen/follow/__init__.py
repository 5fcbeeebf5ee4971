"""The commands ``jobgen status``, ``logs`` and ``cancel``."""
