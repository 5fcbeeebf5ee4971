"""Job checks, submission and run folders."""
