"""Faults that must never occur, measured: one module a figure, and the campaign that runs them all."""
