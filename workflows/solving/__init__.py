"""One file solved or evaluated: schedules and other variants, the check by dry-runs, what an interrupt leaves.

Imports `showing`, `statement` and `running`.
"""
