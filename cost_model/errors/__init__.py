"""Usual errors of figures, and the intervals and margins that follow."""
