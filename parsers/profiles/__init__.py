"""Readers of profiler output: Ascend (CSV and trace) and Kineto traces."""
