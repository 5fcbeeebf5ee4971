"""Base modules that need no torch and support Python 3.9: constants, errors, files, flags, GPUs, stop requests.

jobgen imports no other subpackage of slipway.
"""
