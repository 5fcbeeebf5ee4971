"""The configuration: what can be set, the command line, TOML files, and the JSON schema."""
