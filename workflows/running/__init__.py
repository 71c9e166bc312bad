"""Execution of work: pools of processes, clusters, solves kept on the disk, the folder of a run.

Imports no other workflow.
"""
