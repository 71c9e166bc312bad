"""Stage assignments (columns): which layers and recompute choices the chunks of a stage may hold, listed and priced.

Imports `model` and `timing`.
"""
