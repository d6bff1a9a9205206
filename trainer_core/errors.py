"""The exit codes of nstrain, the exceptions that carry them, and what each becomes as a Prefect state.

One table: the trainer process exits with a code, the supervisor maps it to an outcome, the CLI prints it,
and the recovery page of the documentation is generated from it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

StateType = Literal["COMPLETED", "FAILED", "RUNNING", "CRASHED"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the end of a trainer process means."""

    code: int
    """Exit code of the process; -1 stands for every crash."""
    state_type: StateType
    """Type of the Prefect state the end becomes."""
    state_name: str
    """Name of that state, as the UI shows it."""
    status: str
    """Value of `state` in `nstrain status --json`."""
    retried: bool
    """Whether the supervisor starts the trainer again by itself."""
    counted: bool
    """Whether a retry counts as a failure without progress."""
    meaning: str
    """One sentence for people."""


def _outcome(
    code: int,
    state_type: StateType,
    state_name: str,
    status: str,
    meaning: str,
    *,
    retried: bool = False,
    counted: bool = False,
) -> Outcome:
    return Outcome(
        code=code,
        state_type=state_type,
        state_name=state_name,
        status=status,
        retried=retried,
        counted=counted,
        meaning=meaning,
    )


OUTCOMES: dict[int, Outcome] = {
    o.code: o
    for o in (
        _outcome(0, "COMPLETED", "Finished", "finished", "The schedule or the requested cycles are trained."),
        _outcome(10, "COMPLETED", "Stopped", "stopped", "A stop was requested; a checkpoint was written."),
        _outcome(20, "FAILED", "Refused", "refused", "A start check or a comparison refused to go on."),
        _outcome(30, "FAILED", "NoData", "awaiting-data", "No data is ready and waiting was switched off."),
        _outcome(
            31,
            "RUNNING",
            "AwaitingGPU",
            "awaiting-gpu",
            "Other programs use the GPU; tried again when it is free.",
            retried=True,
        ),
        _outcome(32, "FAILED", "DiskFull", "disk-full", "The disk is full; the last checkpoint is intact."),
        _outcome(33, "FAILED", "DataUsedUp", "data-used-up", "A source has no untrained text left."),
        _outcome(40, "FAILED", "NonFinite", "non-finite", "Too many non-finite updates in a row."),
        _outcome(
            50,
            "RUNNING",
            "Terminated",
            "backoff",
            "A signal or a lost parent ended the trainer after a checkpoint; started again.",
            retried=True,
        ),
    )
}

CRASHED = _outcome(
    -1,
    "CRASHED",
    "Crashed",
    "crashed",
    "The trainer died; started again from the newest checkpoint.",
    retried=True,
    counted=True,
)

STUCK = _outcome(-2, "FAILED", "Stuck", "stuck", "Several failures in a row without a new update.")


def outcome_of(returncode: int) -> Outcome:
    """The outcome of a trainer's return code (negative: killed by that signal); unknown codes are crashes."""
    return OUTCOMES.get(returncode, CRASHED)


class NstrainError(Exception):
    """Base of the errors that end a command with their own exit code."""

    exit_code: int = 1


class Refused(NstrainError, ValueError):
    """Bad input or a mismatch: the message names what, what was expected, and the way out.

    `problems` holds every problem found, so that a user sees all of them at once.
    """

    exit_code = 20

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class NoData(NstrainError):
    """No published cycle and waiting is switched off (`--inline --no-wait`)."""

    exit_code = 30


class AwaitingGPU(NstrainError):
    """Programs that are not ours use the GPU."""

    exit_code = 31


class DiskFull(NstrainError):
    """A write failed because the disk or the quota is used up; nothing published was touched."""

    exit_code = 32


class DataUsedUp(NstrainError):
    """A source or stratum cannot fill the next cycle; the message names it and how many tokens are short."""

    exit_code = 33


class Leaving(NstrainError):
    """Work was broken off because the process was asked to end; the next start goes on with it."""

    exit_code = 50


class NonFinite(NstrainError):
    """Too many updates in a row had a non-finite gradient norm."""

    exit_code = 40


_PATH = frozenset(
    (
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR),
        *(errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    )
)
"""What a path that a person gave can be; any other error of the system is shown whole."""


def path_refused(error: OSError) -> Refused | None:
    """What to say of a path that a person gave, when the error is about it."""
    if error.errno in _PATH and isinstance(error.filename, str | bytes):
        return Refused(f"{os.fsdecode(error.filename)}: {error.strerror}")
    return None


def disk_full(error: OSError) -> bool:
    """Whether an OSError says that the disk or the quota is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
