"""The backend that records a part as its closure: every device, no graph, the same order of operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class EagerBackend:
    """Replay = call the closure again on its static tensors."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, Callable[[], None]] = {}

    def capture(self, key: Hashable, part: Callable[[], None]) -> Hashable:
        assert key not in self._parts, f"part {key!r} is recorded already"
        self._parts[key] = part
        return key

    def replay(self, handle: Hashable) -> None:
        self._parts[handle]()

    def release(self) -> None:
        self._parts.clear()
