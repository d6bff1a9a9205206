"""The backend that captures nothing: it runs each part on the meta device and reports what it saw.

A report is about a part as a whole: what the guard saw, gradients that left the flat buffers, storages that
the part left behind, bytes at the peak. A part without a problem runs once more and must make the same calls.
Nothing needs a GPU or memory beyond the operators' descriptions.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_core.engine.backends.calls import read_call
from trainer_core.engine.backends.guard import CaptureGuard, Problem
from trainer_core.engine.backends.host_use import CannotGoOn, HostUse, generators_watched
from trainer_core.engine.backends.protocol import Part, Wait
from trainer_core.engine.flat import FlatState
from trainer_core.kernels.target import traced_for


@dataclass(frozen=True, kw_only=True)
class PartReport:
    """What one part was seen to do."""

    part: str
    """Name of the part."""
    problems: tuple[Problem, ...]
    """What keeps it from being captured; empty when nothing does."""
    peak_bytes: int
    """Largest sum of the storages that it made, as the pool would hold them."""
    num_ops: int
    """Operators that it ran."""
    fingerprint: str
    """Digest of the operators with shapes and types, in order."""


class MetaCheck:
    """Capture = run under the guard; replay = nothing."""

    def __init__(self, state: FlatState, device: str = "cpu") -> None:
        """`device` is the kind of device that the check is for, such as cpu or cuda."""
        assert state.device.type == "meta", state.device
        self._state = state
        self._device = device
        self.reports: dict[Hashable, PartReport] = {}
        """One report for each part that was captured."""

    def active(self) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(self, part: Part) -> None:
        name = " ".join(map(str, part.key)) if isinstance(part.key, tuple) else str(part.key)
        writable = [*self._state.buffers(), *_put_back(part)]
        guard = CaptureGuard(name, part.constants, writable)
        with traced_for(self._device):
            _run(part, guard)
        for left in self._state.unbound():
            guard.report("left-flat-buffer", left.split(" left ")[0], left)
        _report_left_behind(guard)
        with traced_for(self._device):
            problems = guard.problems or _run_again(part, name, writable, guard)
        self.reports[part.key] = PartReport(
            part=name,
            problems=tuple(problems.values()),
            peak_bytes=guard.storages.peak_bytes,
            num_ops=len(guard.calls),
            fingerprint=guard.fingerprint,
        )

    def replay(self, key: Hashable) -> None:
        assert key in self.reports, key

    def release(self) -> None:
        self.reports.clear()

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype, device="cpu")

    def mark(self) -> Wait:
        return lambda: None


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers what operators write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.tensors += read_call(func, args, kwargs or {}).written
        return func(*args, **kwargs or {})


def _put_back(part: Part) -> list[Tensor]:
    """What a part may change beside the flat buffers: that which its rehearsal puts back."""
    writes = _Writes()
    with writes, part.rehearsal():
        pass
    return writes.tensors


def _run_again(part: Part, name: str, writable: list[Tensor], earlier: CaptureGuard) -> dict[Any, Problem]:
    """What only a second run shows: numbers of the host that went into the first one."""
    guard = CaptureGuard(name, part.constants, writable, earlier=earlier)
    _run(part, guard)
    return guard.problems


def _run(part: Part, guard: CaptureGuard) -> None:
    """Runs a part to its end or to the first problem that hides what comes after it."""
    sizes = [(t.untyped_storage(), t.untyped_storage().nbytes()) for t in part.constants]
    try:
        with generators_watched(guard), HostUse(guard), guard:
            part.run()
        guard.compare_end()
    except CannotGoOn:
        pass
    except Exception as error:
        # What a problem found before leads to is not another problem; anything else is one.
        if not guard.problems:
            guard.report("failed", type(error).__name__, next(iter(str(error).splitlines()), ""))
    for storage, size in sizes:
        if storage.nbytes() != size:
            detail = f"a static input went from {size} to {storage.nbytes()} bytes"
            guard.report("static-written", "resize", detail)


def _report_left_behind(guard: CaptureGuard) -> None:
    if not guard.problems and guard.storages.alive():
        gc.collect()  # autograd and generators may leave cycles, which are nobody's storage
    if not guard.problems:
        for birth in guard.storages.alive():
            detail = f"{birth.num_bytes} bytes stay after the part, where the next graph of the pool writes"
            guard.report("left-behind", birth.op, detail)
