"""What `--cluster` and the page must show, measured: ``python -m benchmarks.cluster``."""
