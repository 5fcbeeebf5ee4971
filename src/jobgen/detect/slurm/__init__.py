"""Detection of a site with Slurm."""
