"""Internals of ``slipway.Session``: opening a run folder, identity of the run, loops, logged values."""
