"""The entry: solvers by name, problems split into subproblems (places, recompute choices), the check of what was found.

Imports everything else of the package; `solve.solve` is what callers use.
"""
