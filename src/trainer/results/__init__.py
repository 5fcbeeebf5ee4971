"""Output of a run for people: progress during training, tables and figures at the end."""
