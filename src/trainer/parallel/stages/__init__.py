"""A model cut into stages, each on a device of its own, through which a rank's micro-batches pass as a pipeline."""
