"""YAML, TOML and shell scripts read, and edited without touching what stays."""
