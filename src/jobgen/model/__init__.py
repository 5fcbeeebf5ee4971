"""Data model of jobgen: sites, specs, jobs, job numbers and shell words."""
