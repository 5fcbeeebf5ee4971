"""Random number generators: seed them by the position in training, capture and restore their state."""
