"""Prefect flows: thin compositions of tasks, one per deployment. Modules are import-light."""
