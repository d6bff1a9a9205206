"""Reading random rows of a published cycle, against stacking rows that are converted one by one.

    python -m benchmarks.rows

Both read the same shards in the same order: 15 sources, segments of 4M tokens, rows of 4,096. Most of the
time goes into the converted rows, 8 bytes a token, so it matters whether they fit into a cache of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.contest import contest, table
from trainer_core.data.plan.manifest import Manifest
from trainer_core.data.plan.row_order import PartOrder, part_order, segment_bounds
from trainer_core.data.prepare.assemble import shard_path
from trainer_core.data.rows.buffers import RowBuffers
from trainer_core.data.rows.line_rows import OpenCycle
from trainer_core.data.sources import Piece
from trainer_core.data.tokens.shards import TokenType, read_shard, write_shard
from trainer_core.line.paths import DataPaths

LENGTH = 4096
AT_ONCE = (64, 256)
SEGMENTS = 4
NUM_ROWS = SEGMENTS * (1 << 22) // LENGTH
SHARES = [30, 20, 12, 8, 6, 5, 4, 3, 3, 2, 2, 2, 1, 1, 1]
TARGET = 500e6


def main() -> None:
    """Print tokens per CPU second of both ways, for both token widths."""
    rows = []
    for token_type in ("uint16", "uint32"):
        with TemporaryDirectory() as folder:
            rows += _compare(Path(folder), token_type)
    print(table(["rows of 4,096", "M tokens per CPU s", "target", "ratio to stack"], rows))


def _compare(root: Path, token_type: TokenType) -> list[list[object]]:
    manifest, order = _published(root, token_type)
    opened = OpenCycle(manifest, DataPaths(root), lambda: None, RowBuffers())
    stack = _stack(root, manifest, order)
    rows: list[list[object]] = []
    for at_once in AT_ONCE:

        def read(step: int = at_once) -> None:
            for first in range(0, NUM_ROWS, step):
                opened.rows(0, first, step)

        def stacked(step: int = at_once) -> None:
            for first in range(0, NUM_ROWS, step):
                stack(first, step)

        read()  # the page cache is warm
        seconds = contest({"nstrain": read, "torch.stack of astype": stacked}, rounds=7)
        for name, best in seconds.items():
            speed = NUM_ROWS * LENGTH / best / 1e6
            target = f"{TARGET / 1e6:,.0f}" if name == "nstrain" else ""
            ratio = seconds["torch.stack of astype"] / best
            rows.append(
                [f"{token_type}, {at_once} at a time: {name}", f"{speed:,.0f}", target, f"{ratio:.2f}"]
            )
    return rows


def _published(root: Path, token_type: TokenType) -> tuple[Manifest, PartOrder]:
    """A cycle of random tokens, and the keys of its manifest that reading needs."""
    random = np.random.default_rng(0)
    shares = {f"source-{index}": share for index, share in enumerate(SHARES)}
    bounds = segment_bounds(NUM_ROWS, SEGMENTS)
    order = part_order(
        Piece(from_cycle=0, shares=shares), seed=1, cycle=0, part=0, order_start=0, bounds=bounds
    )
    segments: list[dict[str, Any]] = []
    for index, (first, _) in enumerate(pairwise(bounds)):
        rows, shards = order.segment_rows(index), []
        for name, count in rows.items():
            tokens = random.integers(0, 60_000, count * LENGTH + 1).astype(token_type)
            path = DataPaths(root).cycle(0) / shard_path(index, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            digest = write_shard(path, tokens, np.array([len(tokens)], dtype=np.uint64))
            shards.append(
                {"source": name, "path": shard_path(index, name), "tokens": len(tokens), "blake2b": digest}
            )
        segments.append({"part": 0, "first_row": first, "rows": rows, "shards": shards})
    part = {"row_length": LENGTH, "num_rows": NUM_ROWS, "updates": NUM_ROWS // AT_ONCE[0], "start_token": 0}
    value = {
        "cycle": 0,
        "seed": 1,
        "planner_version": 1,
        "shares": list(shares.items()),
        "parts": [{**part, "order_start": 0, "order_digest": order.digest()}],
        "segments": segments,
    }
    return Manifest(value=value, sha256=""), order


def _stack(root: Path, manifest: Manifest, order: PartOrder) -> Callable[[int, int], None]:
    """Rows of an update as tensors of their own, stacked."""
    folder = DataPaths(root).cycle(0)
    maps = [
        {s["source"]: read_shard(folder / s["path"]).tokens for s in shards} for shards in manifest.shards()
    ]
    segment = np.searchsorted(np.array(order.bounds), np.arange(NUM_ROWS), side="right") - 1

    def one(row: int) -> torch.Tensor:
        tokens = maps[segment[row]][order.names[order.sequence[row]]]
        start = int(order.windows[row]) * LENGTH
        return torch.from_numpy(tokens[start : start + LENGTH + 1].astype(np.int64))

    def run(first: int, count: int) -> None:
        torch.stack([one(row) for row in range(first, first + count)])

    return run


if __name__ == "__main__":
    main()
