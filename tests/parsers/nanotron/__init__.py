"""nanotron YAML files."""
