"""An operator call as values, and a memory of what calls of one kind return on the meta device.

A step runs the same few operators on the same shapes thousands of times. Many of torch's meta kernels are
Python and slow; for a call that was seen before, its results are made anew from their remembered shapes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trainer_core.engine.backends.storage_peak import tensors_in


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator overload, looked up once."""

    name: str
    """Qualified name without the overload."""
    overload: str
    """Name with the overload, as problems show it."""
    tags: frozenset[torch.Tag]
    """What torch declares of it."""
    writes: tuple[tuple[int, str], ...]
    """Position and name of the arguments that it writes."""
    makes: int
    """How many new tensors it returns, when it does nothing else; else 0."""
    updates: bool
    """Whether all it does is to write its one written argument, which it returns."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One operator call, before it runs."""

    op: Operator
    """The operator."""
    tensors: Sequence[Tensor]
    """Every tensor among its arguments."""
    written: Sequence[Tensor]
    """Those that it writes."""
    devices: Sequence[torch.device]
    """Where the arguments are, and where the result is asked to be; of what has elements."""
    signature: Hashable
    """Operator, arguments, and shapes, strides and types in place of tensors."""

    @property
    def described(self) -> bytes:
        """The signature as bytes, equal in every process."""
        return _bytes(self.signature)


class CallMemory:
    """Runs calls, those of a known signature from memory."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, list[tuple[Any, ...]]] = {}

    def run(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call
    ) -> tuple[Any, Sequence[Tensor]]:
        """The call's result, and the tensors in it."""
        shapes = self._shapes.get(call.signature)
        if shapes is None:
            out = func(*args, **kwargs)
            results = tensors_in(out)
            if call.op.makes == len(results) > 0:
                self._shapes[call.signature] = [(t.shape, t.stride(), t.dtype, t.device) for t in results]
            elif call.op.updates:
                self._shapes[call.signature] = []
            return out, results
        if call.op.updates:
            return call.written[0], call.written
        made = [torch.empty_strided(shape, stride, dtype=t, device=d) for shape, stride, t, d in shapes]
        return (made[0] if call.op.makes == 1 else tuple(made)), made


def read_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Describes a call as a dispatch mode gets it."""
    op = _operator(func)
    written = [args[i] if i < len(args) else kwargs.get(name) for i, name in op.writes]
    tensors, asked = tensors_in((args, kwargs)), kwargs.get("device")
    if args and isinstance(args[0], (list, tuple)) and any(isinstance(n, int) and n == 0 for n in args[0]):
        asked = None  # a size of no elements
    return Call(
        op=op,
        tensors=tensors,
        written=tensors_in(written),
        devices=[t.device for t in tensors if t.numel()] + ([] if asked is None else [torch.device(asked)]),
        signature=(op.overload, _signature(args), _signature(kwargs)),
    )


@cache
def _operator(func: Any) -> Operator:
    schema = func._schema
    writes = [
        (i, argument.name)
        for i, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    returned = [str(result.type) for result in schema.returns]
    aliases = [result.alias_info for result in schema.returns if result.alias_info is not None]
    return Operator(
        name=schema.name,
        overload=str(func),
        tags=frozenset(func.tags),
        writes=tuple(writes),
        makes=0 if writes or aliases or set(returned) != {"Tensor"} else len(returned),
        updates=len(writes) == len(aliases) == len(returned) == 1,
    )


def _signature(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(_signature(member) for member in value)
    if isinstance(value, dict):
        return tuple((key, _signature(member)) for key, member in value.items())
    return type(value).__name__, str(value)


@cache
def _bytes(signature: Hashable) -> bytes:
    return repr(signature).encode()
