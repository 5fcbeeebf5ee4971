"""What is done with a trained model: ``trainer evaluate`` and ``trainer export``."""
