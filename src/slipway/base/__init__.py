"""Without torch, on Python 3.9: the contract, errors, files, flags, GPUs, locks. jobgen imports this room alone."""
