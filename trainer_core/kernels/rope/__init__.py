"""Rotary positions by halves: twin in `reference`, explicit backward in `op`."""

from trainer_core.kernels.rope.op import rotate

__all__ = ["rotate"]
