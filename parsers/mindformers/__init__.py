"""MindFormers training YAML, in its legacy and mcore generations."""
