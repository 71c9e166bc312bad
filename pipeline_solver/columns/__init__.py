"""Stage assignments (columns): possible layers and recompute choices of a stage's chunks, listed and priced.

Imports `model` and `timing`.
"""
