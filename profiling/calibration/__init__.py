"""Fits a device's figures to runs that were measured on it: shares of its peaks, overlap, overheads."""
