"""Objects of a session, saved and restored on all ranks."""
