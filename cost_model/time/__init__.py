"""Time of a layer, a micro-batch and a step."""
