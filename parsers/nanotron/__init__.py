"""nanotron of Hugging Face: its YAML files."""
