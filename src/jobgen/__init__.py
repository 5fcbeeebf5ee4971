"""Turn a site and a description of a job into a plain Bash job script.

Start reading at ``cli.py``, then ``render.py``, then ``launch.py``.
"""
