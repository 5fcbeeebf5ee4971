"""Random number generators: seeded by the place in training, captured and restored."""
