"""The trainer's configuration: options, command line, TOML files and JSON schema."""
