"""Ordering a million rows of fifteen sources, against the two usual ways, in cost and in deviation.

    python -m benchmarks.order

Sorted keys: every row of a source gets an evenly spaced key, and all are sorted. Draws: each row's source is
drawn by the shares. Deviations are in rows from the recipe's share: the worst of all contiguous runs, and the
worst of all updates of 256 rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.contest import contest, table
from trainer_core.data.plan import order
from trainer_core.data.plan.row_order import part_order, segment_bounds
from trainer_core.data.sources import Piece

SHARES = np.random.default_rng(3).dirichlet(np.full(15, 0.7), size=None)
NUM_ROWS = 1_000_000
UPDATE_ROWS = 256
SEGMENT_ROWS = 1024
TARGET = 1e6

Sequence = NDArray[np.int64]


def main() -> None:
    """Print rows per CPU second and deviations of each way."""
    shares = irregular_shares()
    ways: dict[str, Callable[[], Sequence]] = {
        "quota sequence": lambda: quota(shares),
        "whole part order": lambda: whole(shares),
        "sorted keys": lambda: sorted_keys(shares),
        "draws": lambda: np.random.default_rng(0).choice(
            len(shares), size=NUM_ROWS, p=np.array(shares) / NUM_ROWS
        ),
    }
    seconds = contest(ways)
    rows = []
    for name, best in seconds.items():
        run, update = deviations(ways[name](), shares)
        target = f"{TARGET / 1e6:.1f}" if name in ("quota sequence", "whole part order") else ""
        rows.append([name, f"{NUM_ROWS / best / 1e6:.2f}", target, f"{run:.2f}", f"{update:.2f}"])
    print(table(["order of 15 sources", "M rows per CPU s", "target", "worst run", "worst update"], rows))


def irregular_shares() -> list[int]:
    """Integer shares whose sequence repeats only after all rows."""
    shares = np.maximum(1, np.floor(SHARES * NUM_ROWS)).astype(int).tolist()
    shares[0] += NUM_ROWS - sum(shares)
    assert sum(order.reduced(shares)) == NUM_ROWS, "irregular"
    return list(map(int, shares))


def quota(shares: list[int]) -> Sequence:
    """Ours, walked from its beginning."""
    order._walker.cache_clear()
    return order.quota_sequence(shares, 0, NUM_ROWS).astype(np.int64)


def whole(shares: list[int]) -> Sequence:
    """Ours with the windows of each row in segments, and the digest."""
    order._walker.cache_clear()
    piece = Piece(from_cycle=0, shares={f"source-{index}": share for index, share in enumerate(shares)})
    bounds = segment_bounds(NUM_ROWS, NUM_ROWS // SEGMENT_ROWS)
    made = part_order(piece, seed=1, cycle=0, part=0, order_start=0, bounds=bounds)
    made.digest()
    return made.sequence.astype(np.int64)


def sorted_keys(shares: list[int]) -> Sequence:
    """Row k of n of a source at (k + 1/2) / n."""
    keys = np.concatenate([(np.arange(share) + 0.5) / share for share in shares])
    return np.repeat(np.arange(len(shares)), shares)[np.argsort(keys, kind="stable")]


def deviations(sequence: Sequence, shares: list[int]) -> tuple[float, float]:
    """Of the worst contiguous run and of the worst update, in rows."""
    run = update = 0.0
    time = np.arange(len(sequence) + 1)
    for source, share in enumerate(shares):
        placed = np.concatenate([[0], np.cumsum(sequence == source)])
        error = placed - time * (share / NUM_ROWS)
        run = max(run, float(error.max() - error.min()))
        update = max(update, float(np.abs(np.diff(error[::UPDATE_ROWS])).max()))
    return run, update


if __name__ == "__main__":
    main()
