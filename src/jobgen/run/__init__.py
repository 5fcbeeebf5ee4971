"""``jobgen run``: a program and what it needs, as a job."""
