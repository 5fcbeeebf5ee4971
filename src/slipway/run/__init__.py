"""A training run: its lock, its attempts, the vote of the ranks, records, metrics and the end of the run."""
