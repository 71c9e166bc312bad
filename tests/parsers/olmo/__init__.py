"""OLMo-core: launches of its scripts, and what a run saves."""
