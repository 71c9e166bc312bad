"""The prediction gate: what the tree predicts beside what the last release predicted, at 20,000 seeded points."""
