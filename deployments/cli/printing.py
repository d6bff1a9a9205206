"""How the verbs of a data line print: messages at once, values as JSON, paths as words of a shell command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative="")]
Text = Annotated[str, Parameter(allow_leading_hyphen=True)]
"""Any text, one that looks like an option too."""


def say(message: str) -> None:
    """Print a message where it can be seen at once."""
    print(message, flush=True)


def progress(*, quiet: bool) -> Callable[[str], None]:
    """Where messages go: nowhere, if the answer is one JSON value."""
    return (lambda message: None) if quiet else say


def print_json(value: Any) -> None:
    """Print one value."""
    print(json.dumps(value, indent=2))


def quoted(path: Path) -> str:
    """A path as one word of a shell command."""
    return shlex.quote(str(path))


def listed(values: dict[str, Any]) -> str:
    """Names with their values, in one line."""
    return ", ".join(
        f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in values.items()
    )
