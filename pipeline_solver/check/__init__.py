"""The checker: tests a plan's validity and claimed step time, in exact arithmetic and by independent simulation.

Imports `model` and no solver.
"""
