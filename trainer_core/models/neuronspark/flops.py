"""FLOPs of a NeuronSpark per token: what its sums need, with no credit for how kernels do them.

A matrix costs 2 per parameter forwards; a pool read 2 D T, since half of the events lie ahead (4 D T / 2); a
scan five per compartment, three to decay and write it and two to read it; a lookup of k slots 2 k dv per
head, and its comparisons are those of the sub-keys, a matrix. Backwards costs twice as much as forwards.
"""

from __future__ import annotations

from trainer_core.models.neuronspark.config import NeuronSparkConfig


def dendritic_layer(c: NeuronSparkConfig) -> float:
    """FLOPs of a dendritic layer forwards."""
    matrices = c.width * (c.dendritic_width + c.conv_channels + c.dendritic_heads + c.dendritic_width)
    return 2.0 * matrices + dendritic_neurons(c)


def dendritic_neurons(c: NeuronSparkConfig) -> float:
    """Those between its two projections: convolution and scan."""
    return 2.0 * c.conv_channels * c.conv_width + 5.0 * c.dendritic_width * c.compartments


def hippocampal_layer(c: NeuronSparkConfig, T: int) -> float:
    """FLOPs of a hippocampal layer forwards at row length T."""
    control = c.width + c.trace_width
    matrices = (
        2 * c.width * c.width  # queries and output
        + 2 * c.width * c.key_heads * c.head_dim
        + c.width * (c.trace_width + c.trace_heads)
        + control * (c.gate_width + 3 * c.heads)
        + c.gate_width * c.key_heads
        + c.width * (c.pkm_heads * c.pkm_key_dim + 1 + c.pkm_value_dim)
        + c.pkm_heads * c.pkm_key_dim * c.pkm_keys  # both halves
        + 3 * c.width * c.ffn
    )
    lookup = c.pkm_heads * c.pkm_top * c.pkm_value_dim
    return 2.0 * (matrices + lookup) + 5.0 * c.trace_width + 2.0 * c.width * T


def flops_per_token(c: NeuronSparkConfig, vocab_size: int, T: int) -> float:
    """Forwards and backwards, the head included and the embedding's lookup not."""
    layers = c.layers - c.num_hippocampal, c.num_hippocampal
    stack = layers[0] * dendritic_layer(c) + layers[1] * hippocampal_layer(c, T)
    return 3.0 * (stack + 2.0 * c.width * vocab_size)


def recomputed_per_token(c: NeuronSparkConfig, T: int, ac: str) -> float:
    """What a mode of recomputation does once more, forwards."""
    dendritic = (c.layers - c.num_hippocampal) * dendritic_layer(c)
    hippocampal = c.num_hippocampal * hippocampal_layer(c, T)
    return {
        "none": 0.0,
        "scan": (c.layers - c.num_hippocampal) * dendritic_neurons(c),
        "dendritic": dendritic,
        "hippocampal": hippocampal,
        "full": dendritic + hippocampal,
    }[ac]
