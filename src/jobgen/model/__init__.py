"""Sites, specs and jobs, and the shell words that they become."""
