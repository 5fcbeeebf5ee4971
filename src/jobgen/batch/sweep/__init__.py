"""Sweeps: one training with several values of what configures it, a run folder each."""
