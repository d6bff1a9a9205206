"""RMSNorm: twin in `reference`, explicit backward in `op`, kernels of a GPU in `triton`."""

from trainer_core.kernels.norm.op import rms_norm

__all__ = ["rms_norm"]
