"""A model goes on from tokens, one at a time, each fed back with what the model keeps of those before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer_core.errors import Refused
from trainer_core.generate.sampling import Sampler
from trainer_core.models.base import Model


def continuation(
    model: Model, prompt: Sequence[int], sampler: Sampler, *, max_new: int, end: int | None
) -> Iterator[int]:
    """Up to `max_new` tokens behind the prompt, which is not empty; `end` is the last one where it comes.

    Prompt and new tokens must not be longer than the model's longest row. Raises Refused when the model (it
    may be that of another package) gives something else than scores.
    """
    device = next(model.parameters()).device
    state = model.init_state(1)
    fed = list(prompt)
    for _ in range(max_new):
        # Not around the yield: it would switch gradients off for whoever reads.
        with torch.no_grad():
            found = model.advance(torch.tensor([fed], device=device), state)
        scores, state = _checked(found, (1, len(fed), model.vocab_size))
        chosen = sampler.choose(scores[0, -1])
        yield chosen
        if chosen == end:
            return
        fed = [chosen]


def _checked(found: Any, shape: tuple[int, ...]) -> tuple[Tensor, Any]:
    """Scores and state, when that is what it is."""
    if isinstance(found, tuple) and len(found) == 2 and getattr(found[0], "shape", None) == shape:
        return found
    said = [
        list(part.shape) if isinstance(part, Tensor) else type(part).__name__
        for part in (found if isinstance(found, tuple) else [found])
    ]
    raise Refused(
        f"the model's advance returned {', '.join(map(str, said))}; expected scores {list(shape)} and a state"
    )
