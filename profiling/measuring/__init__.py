"""Measurement of a cluster and a model with torch: plans, repeats, saved samples, and the tables made of them."""
