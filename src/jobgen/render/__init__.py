"""Render a Job to the text of its script."""
