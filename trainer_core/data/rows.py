"""Rows of a data line's published cycles for the training loop."""

from __future__ import annotations

from trainer_core.data.row_source import Part, Position, RowBatch, RowSource, StratumRows, ValidationRows

__all__ = ["Part", "Position", "RowBatch", "RowSource", "StratumRows", "ValidationRows"]
