"""Readers of profiler output: Ascend (CSV and trace), Kineto traces, MindInsight tables."""
