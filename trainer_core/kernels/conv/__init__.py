"""Causal depthwise convolution with its activation: twin in `reference`, operator in `op`."""

from trainer_core.kernels.conv.op import causal_conv_silu

__all__ = ["causal_conv_silu"]
