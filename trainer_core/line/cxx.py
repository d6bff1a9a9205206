"""Whether this host has the C++ compiler that torch calls for what it compiles. Imports no torch."""

from __future__ import annotations

import os
import shutil

from trainer_core.line.config import RunConfig
from trainer_core.line.paths import LinePaths


def no_compiler(compile: str) -> str | None:
    """Why `compile`, as in run.json, cannot be had here; None when it can."""
    compiler = os.environ.get("CXX", "g++")  # the one that torch calls
    if compile == "none" or shutil.which(compiler):
        return None
    return (
        f"torch needs a C++ compiler, and {compiler!r} is not here; install it, or name another one in the "
        "environment as CXX"
    )


def compiler_problems(paths: LinePaths, config: RunConfig) -> list[str]:
    """Why what a line compiles cannot be compiled here; empty when it can."""
    problem = no_compiler(config.compile)
    if problem is None:
        return []
    return [f"{paths.run_json}: compile: {problem}, or set compile to none and name it in allow_changes"]
