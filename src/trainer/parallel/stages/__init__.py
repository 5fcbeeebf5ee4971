"""Pipeline parallelism within a rank: the model is cut into stages, each on its own device."""
