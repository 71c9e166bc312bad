"""MILPs of the whole problem: the compact and the start-time model, their files, HiGHS, Pyomo and CBC.

Imports `model`, `timing`, `check` and `columns`.
"""
