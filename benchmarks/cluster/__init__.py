"""Goals of `--cluster` and of the page, measured: ``python -m benchmarks.cluster``."""
