"""The jobs of the command lines, each one function: search, solve one file, rank a folder."""
