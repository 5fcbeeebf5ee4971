"""Internals of ``slipway.Session``: opening a run folder, loops, logged values."""
