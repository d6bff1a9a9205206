"""A row source in memory: rows of a repeating pattern, cycles that can be published one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainer_core.data.rows.source import Part, Position, RowBatch, StratumRows, ValidationRows


class MemoryRows:
    """Cycles of parts; a row is a fixed function of its first token's place in the line and the seed."""

    def __init__(
        self,
        *,
        vocab: int = 64,
        length: int = 16,
        rows_per_cycle: int = 16,
        update_tokens: int = 64,
        planned: Mapping[int, Sequence[tuple[int, int]]] | None = None,
        seed: int = 0,
    ) -> None:
        """`planned` are (row length, rows) of the parts of cycles that are not one part like the others."""
        self.vocab, self.seed, self.update_tokens = vocab, seed, update_tokens
        self.usual = [(length, rows_per_cycle)]
        self.planned = dict(planned or {})
        self.published: set[int] | None = None
        """Cycles that are ready; None: all."""

    def ready(self, cycle: int) -> bool:
        return self.published is None or cycle in self.published

    def parts(self, cycle: int) -> tuple[Part, ...]:
        start = sum(length * rows for before in range(cycle) for length, rows in self._plan(before))
        parts = []
        for index, (length, rows) in enumerate(self._plan(cycle)):
            parts.append(
                Part(
                    row_length=length,
                    num_rows=rows,
                    updates=-(-rows * length // self.update_tokens),
                    start_token=start,
                    order_digest=self._digest(f"order {cycle} {index}"),
                    manifest_sha256=self._digest(f"manifest {cycle}"),
                )
            )
            start += length * rows
        return tuple(parts)

    def _plan(self, cycle: int) -> Sequence[tuple[int, int]]:
        return self.planned.get(cycle, self.usual)

    def _digest(self, name: str) -> str:
        return hashlib.sha256(f"{self.seed} {name}".encode()).hexdigest()

    def _row(self, first: int, length: int) -> np.ndarray:
        random = np.random.default_rng([self.seed, first])
        start, step = random.integers(0, self.vocab), random.integers(1, 4)
        return (start + step * np.arange(length + 1)) % self.vocab

    def rows(self, position: Position, count: int) -> RowBatch:
        part = self.parts(position.cycle)[position.part]
        assert position.row + count <= part.num_rows
        first, length = part.start_token + position.row * part.row_length, part.row_length
        ids = np.stack([self._row(first + k * length, length) for k in range(count)]).astype(np.int64)
        return RowBatch(ids=ids, source_rows={"memory": count}, samples=f"{first}+{count}x{length}")

    def validation(self, row_length: int, cycle: int) -> ValidationRows:
        ids = np.stack([self._row(10**6 + k, row_length) for k in range(6)]).astype(np.int64)
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
