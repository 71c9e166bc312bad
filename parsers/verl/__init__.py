"""verl, whose Hydra options train a policy beside its roll-outs, by Megatron or on sharded parameters."""
