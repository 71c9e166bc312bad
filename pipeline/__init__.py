"""What a pipeline executes: the plan of layers and recompute, and the order of tasks on each stage."""
