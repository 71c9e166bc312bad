"""How many layers each chunk holds and which are recomputed, proven optimal."""
