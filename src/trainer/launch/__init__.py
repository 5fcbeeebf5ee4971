"""Start and end of ranks: spawned here, by a launcher, or on the nodes of a Dask client."""
