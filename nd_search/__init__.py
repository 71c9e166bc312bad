"""Strategies: the space, the rules, the pruning, the choice of what to profile, the emission."""
