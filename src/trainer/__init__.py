"""Train an image classifier on one process or many: the same code, the same result.

Start reading at ``__main__.py``, then ``run.py``, then ``loop.py``.
"""
