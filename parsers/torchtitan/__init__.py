"""torchtitan TOML."""
