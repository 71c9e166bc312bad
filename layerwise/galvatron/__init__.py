"""Galvatron's own search, kept to compare with."""
