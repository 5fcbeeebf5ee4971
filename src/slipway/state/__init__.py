"""The state of models, optimizers and schedulers, and of what their ``state_dict`` leaves out."""
