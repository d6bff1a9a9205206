"""The verbs of nstrain, one module each, returning values; commands and flows are thin callers."""
