"""Optimizers, learning rates and mixed precision."""
