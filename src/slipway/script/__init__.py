"""The parts of a session: opening, loops, what a script logs."""
