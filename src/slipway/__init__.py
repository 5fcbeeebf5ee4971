"""What makes a training run safe to stop, resume and requeue. So far the contract alone; torch is not imported."""
