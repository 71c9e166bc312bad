"""Memory coefficients from few dry-runs: which to run, what they tell, and which plans are worth another."""
