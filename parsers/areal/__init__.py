"""AReaL, whose YAML trains an actor beside roll-outs on ranks of their own, on sharded parameters."""
