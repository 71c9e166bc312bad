"""Lower bounds: path cuts, LPs over columns and over counts, column generation, and what their dual values rule out.

Imports `model`, `timing`, `columns` and the HiGHS model of `milp`.
"""
