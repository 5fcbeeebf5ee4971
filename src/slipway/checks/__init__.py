"""Checks for code in a user script that a session cannot restore or would count incorrectly."""
