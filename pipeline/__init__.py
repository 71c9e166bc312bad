"""A pipeline's plan of layers and recompute, and the order of tasks on each stage."""
