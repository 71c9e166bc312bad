"""What every room stands on: errors with their exit codes, atomic files, the terminal."""
