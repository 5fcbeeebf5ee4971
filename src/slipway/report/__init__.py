"""``trainer report``: one HTML page about runs, made from their folders alone; it needs no torch and no network."""
