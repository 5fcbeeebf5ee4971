"""What makes a training run safe to stop, resume and requeue. Importing the package loads no torch."""
