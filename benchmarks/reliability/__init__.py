"""What must never go wrong, measured: one module a figure, and the campaign that runs them all."""
