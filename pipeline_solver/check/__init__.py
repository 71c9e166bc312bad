"""The checker: whether a plan is valid and takes the time it claims, in exact arithmetic and with its own simulation.

Imports `model` and no solver.
"""
