"""``trainer report``: write one HTML page about runs from their folders; needs neither torch nor a network."""
