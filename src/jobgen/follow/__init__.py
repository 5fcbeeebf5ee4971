"""``jobgen status``, ``logs`` and ``cancel``."""
