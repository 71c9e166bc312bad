"""Many candidates: read, solved, compared, ranked; shards of a ranking; its table and page.

Imports `solving`, `showing`, `statement` and `running`.
"""
