"""Which device a call is for: the device of its tensors, and on the meta device the one that is traced for.

A trace tells the memory and the calls of a device that may not be here, and operators do different things on
different devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_traced = "cpu"


def target(t: Tensor) -> str:
    """Kind of the device, such as cpu or cuda."""
    return _traced if t.is_meta else t.device.type


def launchable(*tensors: Tensor) -> bool:
    """Whether tensors are for a GPU and of a dtype that our kernels for it read."""
    return all(target(t) == "cuda" and t.dtype in (torch.float32, torch.bfloat16) for t in tensors)


@contextmanager
def traced_for(kind: str) -> Iterator[None]:
    """Inside, tensors on the meta device stand for tensors of that kind of device."""
    global _traced
    before, _traced = _traced, kind
    try:
        yield
    finally:
        _traced = before
