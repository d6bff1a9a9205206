"""Defines an operator of ours: one kernel for every device, a fake for meta tensors, an explicit backward.

`torch.library.custom_op` does the same and more, but imports the whole compiler at the first call, which
costs every start of a process seconds; the pieces below it do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Kernel = Callable[..., Any]

_HOME = "trainer_core.kernels.register"

NAMESPACE = "nstrain" if __name__ == _HOME else re.sub(r"\W", "_", __name__, flags=re.ASCII)
"""Of the operators' names. A copy of this file in an exported model defines operators of its own."""

_COMPOSED: dict[str, tuple[Kernel, Callable[..., bool]]] = {}


def _never(*args: Any, **kwargs: Any) -> bool:
    return False


def operator(
    name: str,
    *,
    fake: Kernel,
    composed: bool = False,
    launched: Callable[..., bool] = _never,
    mutates: Sequence[str] = (),
) -> Callable[[Kernel], Kernel]:
    """Decorates the kernel of `nstrain::<name>`; returns the operator that dispatches to it.

    The kernel mutates none of its arguments but those named and returns no alias of one. `fake` makes results
    of the right shapes without reading data. `composed`: the kernel is made of torch's operators alone and
    also runs on meta tensors, so that whoever watches operators can look inside; `launched` says of arguments
    for which it launches kernels instead, which have no inside (see `target`).
    """

    def define(kernel: Kernel) -> Kernel:
        qualified = f"{NAMESPACE}::{name}"
        schema = torch.library.infer_schema(kernel, mutates_args=tuple(mutates))
        torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(qualified, "default", kernel)
        torch.library.register_fake(qualified, fake)
        overload: Kernel = getattr(getattr(torch.ops, NAMESPACE), name).default
        if composed:
            _COMPOSED[qualified] = kernel, launched
        return overload

    return define


def composed_kernel(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Kernel | None:
    """The kernel of a call of ours that is made of torch's operators; None for every other call."""
    kernel, launched = _COMPOSED.get(overload._schema.name, (None, _never))
    return None if launched(*args, **kwargs) else kernel


def differentiate(name: str, backward: Kernel, *, setup: Kernel) -> None:
    """Gives `nstrain::<name>` its backward pass; `setup(ctx, inputs, output)` saves what it needs."""
    torch.library.register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=setup)
