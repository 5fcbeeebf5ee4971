"""Studies: one training on several allocations, a run folder each, so that one can choose among them."""
