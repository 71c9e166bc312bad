"""The trained policy of a reinforcement-learning job: its step by Megatron's flags or on sharded parameters."""
