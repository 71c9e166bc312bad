"""Specifications of models and devices: their fields, the built-in ones, and a user's own."""
