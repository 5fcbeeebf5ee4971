"""A Slurm cluster: what it says of itself, and the site that this makes."""
