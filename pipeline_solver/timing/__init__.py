"""Step time and memory of a given plan: task durations, the event graph and its longest path, in compiled sweeps.

Imports `model`.
"""
