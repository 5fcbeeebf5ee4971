"""Loading of sites and specs from TOML files and ``--set``, and their resolution to a Job."""
