"""Sweeps: the same training with several configuration values, one run folder each."""
