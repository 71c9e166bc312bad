"""OLMo-core of Ai2: launches of its training scripts, and the config.json that a run saves."""
