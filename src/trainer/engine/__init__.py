"""Training on one rank: the learner, its evaluation, checkpoints, memory and profiles."""
