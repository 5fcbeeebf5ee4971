"""Studies and sweeps: folders of several runs that are submitted together, and their common code."""
