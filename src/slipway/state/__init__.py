"""State of models, optimizers and schedulers, including state that their ``state_dict`` leaves out."""
