"""A planned file and its outputs: verdict, page, files, comparisons, timelines.

Imports `statement` and `running`.
"""
