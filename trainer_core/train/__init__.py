"""The training loop: one row source, one schedule, one engine step, checkpoints and readings."""
