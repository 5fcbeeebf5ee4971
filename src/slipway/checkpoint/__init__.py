"""Checkpoints: written whole or not at all, verified before use, resumed exactly."""
