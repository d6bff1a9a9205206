"""What a kernel must do at least, counted from shapes: the floor that its time is compared with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one launch."""

    flops: float
    """Floating point operations of its matrix products, two per multiplication."""
    bytes: float
    """Bytes moved if everything is read once and written once."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(flops=self.flops + other.flops, bytes=self.bytes + other.bytes)

    def seconds(self, *, flops_per_second: float, bytes_per_second: float) -> float:
        """The least time at two peak rates, products and traffic overlapping fully."""
        return max(self.flops / flops_per_second, self.bytes / bytes_per_second)
