"""Fit of a device's figures to runs that were measured on it: fractions of its peaks, overlap, overheads."""
