"""A model goes on from tokens, one at a time, each fed back with what the model keeps of those before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from trainer_core.generate.sampling import Sampler
from trainer_core.models.base import Model


def continuation(
    model: Model, prompt: Sequence[int], sampler: Sampler, *, max_new: int, end: int | None
) -> Iterator[int]:
    """Up to `max_new` tokens behind the prompt, which is not empty; `end` is the last one where it comes.

    Prompt and new tokens must not be longer than the model's longest row.
    """
    device = next(model.parameters()).device
    state = model.init_state(1)
    fed = list(prompt)
    for _ in range(max_new):
        # Not around the yield: it would switch gradients off for whoever reads.
        with torch.no_grad():
            scores, state = model.advance(torch.tensor([fed], device=device), state)
        chosen = sampler.choose(scores[0, -1])
        yield chosen
        if chosen == end:
            return
        fed = [chosen]
