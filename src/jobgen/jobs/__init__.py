"""Jobs: checked, submitted, and their run folders read."""
