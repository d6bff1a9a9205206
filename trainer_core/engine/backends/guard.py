"""Watches every operator of a part that runs on the meta device and names what a CUDA graph could not replay.

The rules say what is wrong with one operator call; what no operator shows is found in `host_use`, what is
wrong with a part as a whole (gradients that left, storages that stayed) in `meta_check`. Operators of ours
that are made of torch's are watched inside, because their inner operators are what a graph would hold.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_core.engine.backends.calls import Call, CallMemory, read_call
from trainer_core.engine.backends.host_use import CannotGoOn
from trainer_core.engine.backends.storage_peak import StoragePeak
from trainer_core.kernels.register import composed_kernel

_TORCH = os.path.dirname(torch.__file__)
_BACKENDS = os.path.dirname(os.path.abspath(__file__))
_INDEXING = {"aten::index", "aten::_unsafe_index"}
_INDEX_WRITES = {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"}
_READS_ON_HOST = {"aten::embedding_renorm_", "aten::_linalg_check_errors"}
"""Operators whose GPU kernels make the host wait, which torch does not declare."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that keeps a part from being captured, or from being the same when it is replayed."""

    rule: str
    """Name of the rule that was broken."""
    part: str
    """Part of the step."""
    op: str
    """Operator, or the name of the parameter or tensor it is about."""
    detail: str
    """What is wrong, and where it was called from."""

    def __str__(self) -> str:
        return f"{self.part}: {self.rule}: {self.op}: {self.detail}"


def _host_sync(call: Call, guard: CaptureGuard) -> str | None:
    if torch.Tag.data_dependent_output in call.op.tags or call.op.name in _READS_ON_HOST:
        return "a value is read on the host, which a capture does not allow and a replay would not repeat"
    return None


def _dynamic_shape(call: Call, guard: CaptureGuard) -> str | None:
    masked = any(t.dtype in (torch.bool, torch.uint8) for t in call.tensors[1:])
    if call.op.name in _INDEXING | _INDEX_WRITES:
        detail = (
            "a boolean mask selects a number of elements that only the data tell; use where or masked_fill"
        )
        return detail if masked else None
    if torch.Tag.dynamic_output_shape in call.op.tags:
        return "the shape of the result depends on data"
    return None


def _wrong_device(call: Call, guard: CaptureGuard) -> str | None:
    found = sorted({device.type for device in call.devices} - {guard.device})
    return f"a tensor on {', '.join(found)} instead of {guard.device}" if found else None


def _random(call: Call, guard: CaptureGuard) -> str | None:
    if torch.Tag.nondeterministic_seeded in call.op.tags:
        return "draws from a generator, whose state neither a replay nor a resume repeats"
    return None


def _static_written(call: Call, guard: CaptureGuard) -> str | None:
    if any(t.untyped_storage()._cdata in guard.constants for t in call.written):
        return "writes a static input, which the next replay reads again"
    return None


def _lasting_write(call: Call, guard: CaptureGuard) -> str | None:
    for t in call.written:
        storage = t.untyped_storage()._cdata
        known = guard.constants | guard.writable
        if t.device.type == guard.device and storage not in known and not guard.storages.born(t):
            return "writes a tensor that outlives the part; no rehearsal puts it back, no checkpoint has it"
    return None


RULES: dict[str, Callable[[Call, CaptureGuard], str | None]] = {
    "host-sync": _host_sync,
    "dynamic-shape": _dynamic_shape,
    "wrong-device": _wrong_device,
    "random": _random,
    "static-written": _static_written,
    "lasting-write": _lasting_write,
}
"""What is asked of every operator call, by the name that a problem carries."""


class CaptureGuard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Applies RULES to every operator call, and keeps peak bytes and a fingerprint of the calls."""

    def __init__(
        self,
        part: str,
        constants: Iterable[Tensor],
        writable: Iterable[Tensor] = (),
        *,
        earlier: CaptureGuard | None = None,
        device: str = "meta",
    ) -> None:
        """`constants` must not be written, of other tensors from outside only `writable` may.

        With the guard of an `earlier` run of the part, every call must be the one that it was then.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.constants = {t.untyped_storage()._cdata for t in constants}
        self.writable = {t.untyped_storage()._cdata for t in writable}
        self.problems: dict[tuple[str, str], Problem] = {}
        self.storages = StoragePeak()
        self.calls: list[bytes] = []
        """The calls in order, described."""
        self._part = part
        self._expected = None if earlier is None else earlier.calls
        self._memory: CallMemory = CallMemory() if earlier is None else earlier._memory

    @property
    def fingerprint(self) -> str:
        """Digest of the operators with their arguments and their tensors' shapes and types, in order."""
        return hashlib.sha256(b"".join(self.calls)).hexdigest()

    def report(self, rule: str, op: str, detail: str) -> None:
        """Records a problem; of one rule and operator the first is kept."""
        problem = Problem(rule=rule, part=self._part, op=op, detail=detail + _caller())
        self.problems.setdefault((rule, op), problem)

    def compare_end(self) -> None:
        """The part is over: so it was in the run before."""
        if self._expected is not None and len(self.calls) < len(self._expected):
            self._report_change("end")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kernel = composed_kernel(func, args, kwargs or {})
        if kernel is not None:
            with self:
                return kernel(*args, **kwargs or {})
        call = read_call(func, args, kwargs or {})
        broken = {name for name, rule in RULES.items() if self._breaks(name, rule, call)}
        if "host-sync" in broken:
            return _stand_in(call)
        if "dynamic-shape" in broken:
            raise CannotGoOn
        self._compare(call)
        out, results = self._memory.run(func, args, kwargs or {}, call)
        self.calls.append(call.described)
        self.storages.observe(call.op.overload, call.tensors, results)
        return out

    def _breaks(self, name: str, rule: Callable[[Call, CaptureGuard], str | None], call: Call) -> bool:
        detail = rule(call, self)
        if detail is not None:
            self.report(name, call.op.overload, detail)
        return detail is not None

    def _compare(self, call: Call) -> None:
        at = len(self.calls)
        if self._expected is not None and self._expected[at : at + 1] != [call.described]:
            self._report_change(call.op.overload)
            raise CannotGoOn

    def _report_change(self, op: str) -> None:
        detail = "differs from the run before; a number of the host goes into it, which a replay repeats"
        self.report("changing", op, detail)


def _stand_in(call: Call) -> Any:
    """A value in place of one that only real data have, so that later problems are found too."""
    if call.op.name not in ("aten::_local_scalar_dense", "aten::item"):
        raise CannotGoOn
    return torch.ones((), dtype=call.tensors[0].dtype, device="cpu").item()


def _caller() -> str:
    """Where the innermost code outside of torch and the backends stands."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _BACKENDS)):
            return f" ({os.path.basename(name)}:{frame.f_lineno} in {frame.f_code.co_name})"
        frame = frame.f_back
    return ""
