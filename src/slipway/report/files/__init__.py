"""Files of an untrusted run folder, read as values: attempts, metrics, times, confusion matrix, profiles."""
