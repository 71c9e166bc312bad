"""One file solved or evaluated: schedules and other variants, the check by dry-runs, the result of an interrupt.

Imports `showing`, `statement` and `running`.
"""
