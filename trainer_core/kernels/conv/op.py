"""Causal depthwise convolution with its activation."""

from trainer_core.kernels.conv.reference import causal_conv_silu_reference as causal_conv_silu

__all__ = ["causal_conv_silu"]
