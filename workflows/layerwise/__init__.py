"""Layer-wise strategies: costs measured or estimated, the search, its files and launch script.

Imports `running` and `statement`.
"""
