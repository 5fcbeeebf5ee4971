"""Checkpoints: written atomically, verified before use, and resumed from exactly."""
