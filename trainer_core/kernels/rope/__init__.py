"""Rotary positions by halves: twin in `reference`, explicit backward in `op`, kernel of a GPU in `triton`."""

from trainer_core.kernels.rope.op import rotate

__all__ = ["rotate"]
