"""``jobgen run``: run a Python script on the nodes of a job."""
