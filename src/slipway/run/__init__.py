"""A training run: its attempt, agreement between ranks, records, metrics, and its end."""
