"""Prefect tasks: thin wrappers around trainer_core and what the UI shows. Importing this loads no Prefect."""
