"""A row source in memory: rows of a repeating pattern, cycles that can be published one by one."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from trainer_core.data.row_source import Part, Position, RowBatch, StratumRows, ValidationRows


class MemoryRows:
    """Cycles of one part each; row k of the whole line is a fixed function of k and the seed."""

    def __init__(
        self,
        *,
        vocab: int = 64,
        length: int = 16,
        rows_per_cycle: int = 16,
        update_rows: int = 4,
        seed: int = 0,
    ) -> None:
        self.vocab, self.length, self.rows_per_cycle, self.seed = vocab, length, rows_per_cycle, seed
        self.update_rows = update_rows
        self.published: set[int] | None = None
        """Cycles that are ready; None: all."""

    def ready(self, cycle: int) -> bool:
        return self.published is None or cycle in self.published

    def parts(self, cycle: int) -> tuple[Part, ...]:
        name = f"{self.seed}/{cycle}"
        return (
            Part(
                row_length=self.length,
                num_rows=self.rows_per_cycle,
                updates=self.rows_per_cycle // self.update_rows,
                start_token=cycle * self.rows_per_cycle * self.length,
                order_digest=hashlib.sha256(name.encode()).hexdigest(),
                manifest_sha256=hashlib.sha256((name + "m").encode()).hexdigest(),
            ),
        )

    def _row(self, number: int) -> np.ndarray:
        random = np.random.default_rng([self.seed, number])
        start, step = random.integers(0, self.vocab), random.integers(1, 4)
        return (start + step * np.arange(self.length + 1)) % self.vocab

    def rows(self, position: Position, count: int) -> RowBatch:
        first = position.cycle * self.rows_per_cycle + position.row
        assert position.row + count <= self.rows_per_cycle
        ids = np.stack([self._row(first + k) for k in range(count)]).astype(np.int64)
        return RowBatch(ids=ids, source_rows={"memory": count}, samples=f"{first}+{count}")

    def validation(self, row_length: int, cycle: int) -> ValidationRows:
        ids = np.stack([self._row(10**6 + k) for k in range(6)]).astype(np.int64)
        strata = [
            StratumRows(name="a", share=0.25, ids=ids[:4]),
            StratumRows(name="b", share=0.75, ids=ids[4:]),
        ]
        return ValidationRows(
            row_length=row_length, sources={"memory": strata}, recipe={"memory": 1.0}, sha256="0" * 64
        )

    def identity(self) -> dict[str, Any]:
        return {"rows": f"memory-{self.seed}"}

    def close(self) -> None:
        pass
