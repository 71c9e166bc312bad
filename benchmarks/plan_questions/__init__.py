"""Sixty questions on parallel training in plain language, with checkable answers, and their scorer."""
