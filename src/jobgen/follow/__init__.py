"""The commands ``jobgen list``, ``status``, ``logs`` and ``cancel``."""
