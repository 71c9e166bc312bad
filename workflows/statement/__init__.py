"""From a configuration file to a stated job: device, memory, time ratios, legality, and the pipeline problem.

Imports `running`.
"""
