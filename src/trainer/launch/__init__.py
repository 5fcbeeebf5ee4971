"""How ranks start and end: spawned here, by a launcher, or on the nodes of a Dask client."""
