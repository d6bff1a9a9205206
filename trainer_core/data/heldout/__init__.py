"""Held-out text: its streams, and the validation rows cut from them."""
