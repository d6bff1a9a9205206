"""What happens to one source file while a cycle is prepared, for whoever shows or records it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

FileKey = tuple[str, str]
"""Source by nickname, and path within it."""


@dataclass(frozen=True, kw_only=True)
class FileStep:
    """A file's step has begun or has ended."""

    step: Literal["download", "tokenize"]
    """What is done with the file; comparing a folder's file with its digest counts as download."""
    source: str
    """Source by nickname."""
    path: str
    """File within the source."""
    state: Literal["started", "done", "failed"]
    """Every `started` is followed by one of the others, unless the process dies."""
    message: str = ""
    """Why it failed."""


Started = Callable[[FileKey], None]
"""Told, by any thread, that a file is really being worked on."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A file that is through, for better or worse."""

    key: FileKey
    """The file."""
    error: BaseException | None
    """What it failed with."""


Report = Callable[[FileStep], None]
"""Told of every step, by any thread but never by two at once. It must neither raise nor block for long."""


def report_nothing(step: FileStep) -> None:
    """For callers that nobody watches."""
