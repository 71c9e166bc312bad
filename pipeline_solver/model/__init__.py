"""The pipeline problem as data: problem, options, solution, progress, when to stop, and the protocol of a solver.

Contains no algorithm; imports `pipeline` and `base` alone.
"""
