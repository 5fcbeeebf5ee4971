"""Studies: the same training on several allocations, one run folder each, to compare scaling."""
