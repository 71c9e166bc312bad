"""Good plans fast: annealing on columns and on plans, first plans, plans under one recompute choice, incumbents.

Imports what lies below: `bounds`, `columns`, `timing`, `check`, `model`.
"""
