"""Compares start-up rules of keys with the programs' own checks, run on the same settings."""
