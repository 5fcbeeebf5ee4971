"""Training on one rank: learner, evaluation, checkpoints, memory estimates and profiles."""
