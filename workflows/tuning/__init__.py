"""Small runs for a large job: written, started, read, and turned into plans that further runs verify.

Imports `measuring` and what lies below.
"""
