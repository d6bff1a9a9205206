"""Which device a call is for: the device of its tensors, and on the meta device the one that is traced for.

A trace tells the memory and the calls of a device that may not be here, and operators do different things on
different devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

_traced = "cpu"

Block = TypeVar("Block")


def target(t: Tensor) -> str:
    """Kind of the device, such as cpu or cuda."""
    return _traced if t.is_meta else t.device.type


def launchable(*tensors: Tensor) -> bool:
    """Whether tensors are for a GPU and of a dtype that our kernels for it read."""
    return all(target(t) == "cuda" and t.dtype in (torch.float32, torch.bfloat16) for t in tensors)


def worth_doing(blocks: list[Block], like: Tensor) -> list[Block]:
    """All blocks of a loop that does the same to each; for meta tensors the first and the last two.

    A trace wants each operator and the largest tensors once. They are in the first block or the last, or in
    the one before where the last is short; what lies between would only take minutes.
    """
    return [blocks[0], *blocks[-2:]] if like.is_meta and len(blocks) > 3 else blocks


@contextmanager
def traced_for(kind: str) -> Iterator[None]:
    """Inside, tensors on the meta device stand for tensors of that kind of device."""
    global _traced
    before, _traced = _traced, kind
    try:
        yield
    finally:
        _traced = before
