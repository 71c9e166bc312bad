"""Basis of every package: errors with their exit codes, atomic files, the terminal."""
