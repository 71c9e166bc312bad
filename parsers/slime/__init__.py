"""slime, whose scripts train a policy by Megatron's flags beside roll-outs."""
