"""Memory coefficients from few dry-runs: which to run, the fit to them, and which plans are worth another."""
