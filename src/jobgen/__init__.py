"""Render Bash job scripts from a site and a spec, submit them, and follow the jobs.

Start with ``cli``, then read ``render/script.py`` and ``render/launch.py``.
"""
