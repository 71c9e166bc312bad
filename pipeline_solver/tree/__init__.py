"""Proofs: branch and cut over columns, enumeration, probing, the processes that share a tree, one stage at a time.

Imports everything below; hands over to `milp` what it cannot close.
"""
