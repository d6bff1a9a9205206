"""Shape of a NeuronSpark and the checks of a user's configuration. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.errors import Refused
from trainer_core.models.settings import LARGEST, config_problems, no_multiple

RELEASES = ("graded", "binary")
"""What a neuron passes on above its threshold: how far it is above, or that it is."""


@dataclass(frozen=True, kw_only=True)
class NeuronSparkConfig:
    """Shape of a NeuronSpark."""

    width: int
    """Width D of the residual stream."""
    layers: int
    """Number of layers; layer i is hippocampal where i % interval is interval - 1, else dendritic."""
    interval: int = 4
    """Every how many layers one is hippocampal."""
    dendritic_width: int
    """Channels of the soma of a dendritic layer, its heads times their width."""
    dendritic_heads: int
    """Heads of a dendritic layer; each leaks at a rate of its own."""
    compartments: int
    """Compartments N of a dendritic neuron: potentials per channel."""
    synapse_groups: int = 1
    """Groups of heads that share what they write to and read from their compartments."""
    conv_width: int = 4
    """Tokens that the depthwise convolution sees."""
    heads: int
    """Query heads H of a hippocampal layer; width / heads is the even width d of a head."""
    key_heads: int
    """Key heads, each shared by heads / key_heads query heads."""
    trace_heads: int
    """Rates at which the trace of a hippocampal layer decays."""
    trace_channels: int
    """Channels of the trace per rate."""
    gate_width: int
    """Neurons that decide what is written."""
    ffn: int
    """Neurons inside the feed-forward part of a hippocampal layer."""
    pkm_keys: int
    """Sub-keys n of a half; the table of values has n x n rows."""
    pkm_top: int
    """Slots k that a head reads."""
    pkm_heads: int
    """Heads that look up the table."""
    pkm_key_dim: int
    """Even width of a key, its two halves together."""
    pkm_value_dim: int
    """Width of a value."""
    pkm_shared: bool = False
    """Whether all hippocampal layers have one table of values."""
    release: str = "graded"
    """graded or binary."""
    rope_theta: float = 10_000.0
    """Base of the rotary wavelengths."""
    rope_max_seq_len: int = 2_048
    """Longest row."""
    norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    residual_fp32: bool = True
    """Whether the residual stream is float32 beside narrower weights."""
    neuron_lr_mult: float = 1.0
    """Factor on the learning rate of thresholds, rates and other scalars of neurons."""
    pkm_lr_mult: float = 1.0
    """Factor on the learning rate of the table of values."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> NeuronSparkConfig:
        """Checks a user's configuration and reports every problem of it."""
        choices = {"release": RELEASES}
        problems = config_problems(cls, config, family="neuronspark", choices=choices, misfits=_misfits)
        if problems:
            raise Refused(problems)
        return cls(**config)

    @property
    def head_dim(self) -> int:
        """Width d of a query or key head."""
        return self.width // self.heads

    @property
    def trace_width(self) -> int:
        """Channels of the trace."""
        return self.trace_heads * self.trace_channels

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: inputs, write and read vectors."""
        return self.dendritic_width + 2 * self.synapse_groups * self.compartments

    def is_hippocampal(self, layer: int) -> bool:
        """Which of the two kinds a layer is."""
        return layer % self.interval == self.interval - 1

    @property
    def num_hippocampal(self) -> int:
        """Hippocampal layers."""
        return sum(map(self.is_hippocampal, range(self.layers)))

    @property
    def num_additions(self) -> int:
        """Additions to the residual stream: a dendritic layer has one, a hippocampal layer two."""
        return self.layers + self.num_hippocampal


def _misfits(sound: Mapping[str, Any]) -> list[str]:
    """What does not fit together."""
    found = [
        *no_multiple(sound, "width", of="heads", times=2),
        *no_multiple(sound, "dendritic_width", of="dendritic_heads"),
        *no_multiple(sound, "dendritic_heads", of="synapse_groups"),
        *no_multiple(sound, "heads", of="key_heads"),
    ]
    if sound.get("pkm_key_dim", 2) % 2:
        found.append(f"model.config.pkm_key_dim {sound['pkm_key_dim']} must be a multiple of two")
    top, keys = sound.get("pkm_top", 0), sound.get("pkm_keys", LARGEST)
    if top > keys:
        found.append(f"model.config.pkm_top {top} is more than model.config.pkm_keys {keys}")
    return found
