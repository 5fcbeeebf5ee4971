"""Sites, specs and jobs; errors, paths, the registry of modules, and shell words. Every other room builds on these."""
