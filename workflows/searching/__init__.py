"""Strategies searched: candidates of a configuration or of a model alone, explained, solved quickly, refined by layer.

Imports `ranking`, `layerwise` and the packages below them.
"""
