"""What a person sees of a run: progress while it trains, metrics and figures after."""
