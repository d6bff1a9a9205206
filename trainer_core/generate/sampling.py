"""Choosing the next token: which may follow with what probability, and the draw.

All of it happens in float64 on the CPU with a generator of our own, so equal scores and seeds give equal
tokens on every device. Among equal scores the smaller id comes first.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer_core.errors import Refused


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen; the filters apply in the order of the fields."""

    temperature: float = 1.0
    """Scores are divided by it; 0: always the likeliest token."""
    top_k: int | None = None
    """Only this many of the likeliest tokens."""
    top_p: float | None = None
    """Of those only the likeliest that have this much probability together."""

    def problems(self) -> list[str]:
        """What is wrong with the values, by the name of their option."""
        found = []
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            found.append(f"--temperature {self.temperature}: expected a number of at least 0")
        if self.top_k is not None and self.top_k < 1:
            found.append(f"--top-k {self.top_k}: expected at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            found.append(f"--top-p {self.top_p}: expected a number above 0, 1 at most")
        return found


def candidates(scores: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Ids that may follow, the likeliest first, and their probabilities in float64; scores [V].

    Raises Refused when the scores are no numbers.
    """
    ordered, ids = scores.detach().to("cpu", torch.float64).sort(descending=True, stable=True)
    if not math.isfinite(ordered[0]):  # what is not a number comes first
        raise Refused("the model's scores are no numbers; its training went wrong, choose an earlier --at")
    if sampling.temperature == 0:
        return ids[:1], torch.ones(1, dtype=torch.float64)
    if sampling.top_k is not None:
        ordered = ordered[: sampling.top_k]
    # The largest is taken off first: a small temperature would make infinity of what is divided by it.
    probabilities = torch.softmax((ordered - ordered[0]) / sampling.temperature, -1)
    if sampling.top_p is not None:
        # A token stays if those before it have less than top_p: so the first one always stays.
        stays = probabilities.cumsum(-1) - probabilities < sampling.top_p
        probabilities = probabilities[stays] / probabilities[stays].sum()
    return ids[: len(probabilities)], probabilities


class Sampler:
    """Draws tokens one after another; equal seeds and samples draw alike, whatever else is drawn."""

    def __init__(self, sampling: Sampling, *, seed: int, sample: int = 0) -> None:
        self._sampling = sampling
        key = hashlib.sha256(f"{seed}/{sample}".encode()).digest()
        self._generator = torch.Generator("cpu").manual_seed(int.from_bytes(key[:8], "little") >> 1)

    def choose(self, scores: Tensor) -> int:
        """The next token by its scores [V]."""
        ids, probabilities = candidates(scores, self._sampling)
        if len(ids) == 1:
            return int(ids)
        drawn = torch.rand(1, dtype=torch.float64, generator=self._generator)
        place = torch.searchsorted(probabilities.cumsum(-1), drawn, right=True)
        return int(ids[place.clamp(max=len(ids) - 1)])
