"""Keeping a trainer process alive: start it, watch it, judge its end, wait before the next start.

No Prefect and no torch: the Prefect task `gpu_worker` maps what this package returns to states, and the same
code runs under `nstrain run --foreground` or in a test. The line directory is the only state.
"""
