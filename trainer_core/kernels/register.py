"""Defines an operator of ours: one kernel for every device, a fake for meta tensors, an explicit backward.

`torch.library.custom_op` does the same and more, but imports the whole compiler at the first call, which
costs every start of a process seconds; the pieces below it do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Kernel = Callable[..., Any]

_COMPOSED: dict[str, Kernel] = {}


def operator(
    name: str, *, fake: Kernel, composed: bool = False, mutates: Sequence[str] = ()
) -> Callable[[Kernel], Kernel]:
    """Decorates the kernel of `nstrain::name`; returns the operator that dispatches to it.

    The kernel mutates none of its arguments but those named and returns no alias of one. `fake` makes results
    of the right shapes without reading data. `composed`: the kernel is made of torch's operators alone and
    also runs on meta tensors, so that whoever watches operators can look inside.
    """

    def define(kernel: Kernel) -> Kernel:
        qualified = f"nstrain::{name}"
        schema = torch.library.infer_schema(kernel, mutates_args=tuple(mutates))
        torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(qualified, "default", kernel)
        torch.library.register_fake(qualified, fake)
        overload: Kernel = getattr(torch.ops.nstrain, name).default
        if composed:
            _COMPOSED[qualified] = kernel
        return overload

    return define


def composed_kernel(overload: torch._ops.OpOverload) -> Kernel | None:
    """The kernel of an operator of ours that is made of torch's operators; None for every other operator."""
    return _COMPOSED.get(overload._schema.name)


def differentiate(name: str, backward: Kernel, *, setup: Kernel) -> None:
    """Gives `nstrain::name` its backward pass; `setup(ctx, inputs, output)` saves what it needs."""
    torch.library.register_autograd(f"nstrain::{name}", backward, setup_context=setup)
