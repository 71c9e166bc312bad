"""Files in and out: configurations (read, write back), memory profiles, logs, profiles."""
