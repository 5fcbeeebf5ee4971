"""Base modules that need no torch and support Python 3.9: constants, errors, files, flags, GPUs, locks.

jobgen imports no other subpackage of slipway.
"""
