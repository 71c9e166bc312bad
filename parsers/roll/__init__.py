"""ROLL, whose YAML trains a policy, a student or a model beside other roles, by Megatron or on sharded parameters."""
