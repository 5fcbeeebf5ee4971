"""From TOML files and ``--set`` to one Job."""
