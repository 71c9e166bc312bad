"""Proofs: branch and cut over columns, enumeration, probing, the processes that share a tree, one stage at a time.

Imports everything below; `milp` takes over what it cannot close.
"""
