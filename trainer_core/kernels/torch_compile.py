"""How functions are given to torch's compiler: each shape by itself, and never uncompiled without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

SHAPES = 256
"""Shapes of rows, with and without gradients, that a function is compiled for at most."""

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, compiled at the first call for each shape of its arguments.

    A line has more shapes than torch expects. Past torch's limit it would go on uncompiled without a word,
    with other bits: it fails instead. Importing the compiler takes seconds.
    """
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = SHAPES
    dynamo.fail_on_recompile_limit_hit = True
    return torch.compile(function, dynamic=False)
