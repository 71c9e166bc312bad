"""NeMo RL, whose YAML trains a policy by Megatron Core or on DTensors, beside its roll-outs."""
