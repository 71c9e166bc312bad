"""A planned file and what shows it: verdict, page, files, comparisons, timelines.

Imports `statement` and `running`.
"""
