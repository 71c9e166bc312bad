"""What was measured: devices calibrated, runs kept in a store, hardware, models and operators profiled.

Imports what lies below.
"""
