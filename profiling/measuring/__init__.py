"""Measures a cluster and a model with torch: what is measured, how it is repeated and kept, and the tables of it."""
