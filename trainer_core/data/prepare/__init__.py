"""Prepares cycles: downloads, tokenizers, shards, and the room they take on a host."""
