"""How nstrain reaches people: the `nstrain` command, a host's Prefect server, workers and settings.

Importing this package imports nothing else; Prefect itself is imported by none of its modules except in
processes that Prefect starts.
"""
