"""Data loading: samplers, loaders that resume at any batch, worker processes, archives."""
