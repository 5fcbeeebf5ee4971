"""The data of a rank: samplers, loaders that resume at any batch, worker processes, archives."""
