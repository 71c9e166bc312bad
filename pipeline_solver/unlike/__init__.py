"""Plans for micro-batches of unlike cost: one plan whose mean step over sampled steps is least."""
