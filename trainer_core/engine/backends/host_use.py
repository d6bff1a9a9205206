"""Watches what no operator of the meta device shows: numbers, lists and generators of the host in a part.

Owns the recognition of calls from Python; what is found is recorded by the guard of the part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FROM_HOST = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}
_TO_HOST = {Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.__format__, Tensor.__repr__}
_INDEXED = {Tensor.__getitem__, Tensor.__setitem__}
_OF_GENERATORS = ("get_rng_state", "set_rng_state", "manual_seed", "seed")


class CannotGoOn(Exception):
    """The rest of a part depends on what is not known here; the problem is recorded already."""


class Recorder(Protocol):
    """Who is told what was found."""

    def report(self, rule: str, op: str, detail: str) -> None:
        """Records a problem by the name of the rule and of the function."""
        ...


class HostUse(TorchFunctionMode):
    """Reports values that pass between host and device without an operator that would show it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _TO_HOST:
            self._recorder.report("host-sync", func.__name__, "a value is read on the host")
            raise CannotGoOn
        if func in _FROM_HOST:
            detail = "a constant is copied from the host; make it before, or by full, zeros or arange"
            self._recorder.report("host-constant", func.__name__, detail)
        if func in _INDEXED and _has_lists(args[1]):
            detail = "a list of the host is copied as an index; use slices, or a tensor made before"
            self._recorder.report("host-constant", func.__name__, detail)
        return func(*args, **kwargs or {})


def _has_lists(index: Any) -> bool:
    members: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    return any(isinstance(member, (list, range, np.ndarray)) for member in members)


@contextmanager
def generators_watched(recorder: Recorder) -> Iterator[None]:
    """Reports generators of the host whose state is read, set or moved inside: a replay would not do it."""
    modules = (torch, torch.random)
    originals = {(module, name): getattr(module, name) for module in modules for name in _OF_GENERATORS}
    for (module, name), original in originals.items():
        setattr(module, name, _reporting(recorder, name, original))
    before = _states()
    try:
        yield
    finally:
        for (module, name), original in originals.items():
            setattr(module, name, original)
        for library, state in _states().items():
            if state != before[library]:
                detail = "draws from a generator of the host; a replay repeats what was drawn at the capture"
                recorder.report("random", library, detail)


def _reporting(recorder: Recorder, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def reports(*args: Any, **kwargs: Any) -> Any:
        detail = "uses the state of the global generator; recompute with preserve_rng_state=False"
        recorder.report("random", name, detail)
        return original(*args, **kwargs)

    return reports


def _states() -> dict[str, object]:
    """States of the global generators by the library that has them, as values that compare."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "random": random.getstate(),
        "numpy.random": (kind, np.asarray(keys).tobytes(), *rest),
        "torch.default_generator": torch.default_generator.get_state().numpy().tobytes(),
    }
