"""Whether a token has been here before: where nothing can match, nothing may be copied."""

from __future__ import annotations

import torch
from torch import Tensor


def seen_before(ids: Tensor) -> Tensor:
    """Bool [B, S]: whether the id of an event of ids [B, S] occurs among the earlier events of its row.

    A stable sort puts equal ids side by side in the order of their events: all but the first were seen.
    """
    ordered, events = ids.sort(dim=1, stable=True)
    repeated = torch.zeros_like(ids, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(repeated).scatter_(1, events, repeated)
