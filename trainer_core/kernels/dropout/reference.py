"""The specification of dropout: which elements are kept is a hash of where and when they are, nothing else.

The hash is 32-bit integer arithmetic on (seed, update, micro-batch, site, element), the same bits on every
device. There is no generator: a recomputed, replayed or resumed forward pass keeps the same elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

KEY_STARTS = (0x243F6A88, 0x85A308D3)
"""First state of the two keys, digits of pi."""

FACTORS = (0x7FEB352D, 0x846CA68B)
"""Factors of the mixer: odd, so that every step of it can be undone and no two inputs meet."""

SHIFTS = (16, 15, 16)
"""Shifts of the mixer."""

CHUNK = 1 << 18
"""Elements hashed at a time, so that the many passes over them stay in a CPU's cache."""


def signed(word: int) -> int:
    """The int32 with the bits of a 32-bit word."""
    return word - (1 << 32) if word >= 1 << 31 else word


def mix(x: Tensor) -> Tensor:
    """Scrambles int32 words in place; products wrap, shifts are logical."""
    for shift, factor in zip(SHIFTS, (*FACTORS, None), strict=True):
        x ^= (x >> shift) & ((1 << (32 - shift)) - 1)
        if factor is not None:
            x *= signed(factor)
    return x


def keys(counter: Tensor, site: int) -> Tensor:
    """The two int32 keys of one call; `counter` is [seed, update, micro-batch], int64."""
    words = torch.stack((counter, counter >> 32), dim=1).reshape(-1).to(torch.int32)
    key = torch.cat([torch.full_like(words[:1], signed(start)) for start in KEY_STARTS])
    for word in words:
        mix(key.bitwise_xor_(word))
    return mix(key.bitwise_xor_(site))


def hashes(counter: Tensor, site: int, num_elements: int) -> Tensor:
    """The hash of each element, as int32."""
    key = keys(counter, site)
    out = torch.arange(num_elements, dtype=torch.int32, device=counter.device)
    for first in range(0, num_elements, CHUNK):
        mix(mix(out[first : first + CHUNK].bitwise_xor_(key[0])).add_(key[1]))
    return out


def threshold(p: float) -> int:
    """A hash, read as unsigned, below p x 2^32 drops its element; here moved to where int32 orders alike."""
    return int(p * (1 << 32)) - (1 << 31)


def dropout_reference(x: Tensor, counter: Tensor, site: int, p: float) -> Tensor:
    """Each element with probability p zero, otherwise x / (1 - p), by its row-major index."""
    ordered = hashes(counter, site, x.numel()).bitwise_xor_(signed(1 << 31))
    keep = ordered.ge(threshold(p)).view(x.shape)
    return torch.where(keep, x * (1 / (1 - p)), 0)
