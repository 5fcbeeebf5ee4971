"""Save and restore a session's objects on all ranks."""
