"""Peak memory of a strategy: estimated, replayed or run, behind one interface."""
