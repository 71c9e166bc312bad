"""The order of tasks as a choice: local search and branch and bound over orders, for one plan.

Imports `model` and `timing`.
"""
