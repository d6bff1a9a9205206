"""Speaks to a hub: revisions, lists of files, and files that arrive whole, verified, or not at all."""
