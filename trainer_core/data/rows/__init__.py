"""Rows of published cycles, as the training loop asks for them."""
