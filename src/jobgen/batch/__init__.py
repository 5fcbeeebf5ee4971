"""Folders of several runs that are submitted together: what studies and sweeps have in common."""
