"""Contenders side by side: each script is run as `python -m benchmarks.NAME` and prints one table."""
