"""Measuring what an engine does on this machine, beside what the hardware allows."""
