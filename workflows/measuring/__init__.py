"""Measurements: devices calibrated, runs kept in a store, hardware, models and operators profiled.

Imports the packages below it.
"""
