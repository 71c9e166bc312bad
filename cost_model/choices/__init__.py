"""Choices of a layer by module."""
