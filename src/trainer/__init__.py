"""Train an image classifier in one process or many: the same code, the same result.

Start reading at ``__main__.py``, then ``train.py``.
"""
