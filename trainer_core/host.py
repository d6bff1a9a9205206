"""Host settings: what differs from machine to machine, read first by every command, flow and worker.

The file is `~/.nstrain/host.json` or the one named by $NSTRAIN_HOST. Its `env` is set before torch, triton or
huggingface_hub is imported, because they read their variables at import.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer_core.complaints import validation_problems
from trainer_core.errors import Refused
from trainer_core.line.files import read_json
from trainer_core.models.external import use_folder


class Limits(BaseModel):
    """How much of the host the preparers of all lines together may use."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    download: int = Field(default=4, ge=1)
    """Files downloaded at once."""
    tokenize: int = Field(default_factory=lambda: max(1, min(8, cores() - 1)), ge=1)
    """Files tokenized at once, a process each; all cores but one, eight at most, unless set here."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class HostSettings(BaseModel):
    """Settings of one host; every key is optional."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: str = "host/1"
    """Format of the file."""
    neuronspark: str | None = None
    """Folder of an external model package, whose families are used as if it were installed."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables to set before anything heavy is imported."""
    work_root: str | None = None
    """Folder of lines and data lines: relative names that do not exist are looked up here."""
    tokenizer: str | None = None
    """tokenizer.json used by `data init` when none is given."""
    calibration_from: str | None = None
    """Data line whose calibration `data init` takes over where source and tokenizer are the same."""
    notify: str | None = None
    """Program run with an event as JSON on its standard input."""
    limits: Limits = Field(default_factory=Limits)
    """Downloads and tokenizers at once, over all lines of the host."""


def state_dir() -> Path:
    """nstrain's own folder in the user's home: Prefect's database, device leases, host.json."""
    return Path.home() / ".nstrain"


def host_file() -> Path:
    """The settings file in force."""
    named = os.environ.get("NSTRAIN_HOST")
    return Path(named).expanduser() if named else state_dir() / "host.json"


def load_host() -> HostSettings:
    """Read the settings and set their environment variables. Raises Refused with every problem of the file.

    A missing default file means no settings; a file named by $NSTRAIN_HOST must exist.
    """
    path = host_file()
    if not path.exists():
        if os.environ.get("NSTRAIN_HOST"):
            raise Refused(f"{path}: does not exist, but NSTRAIN_HOST names it; mend or unset the variable")
        return HostSettings()
    try:
        settings = HostSettings.model_validate(read_json(path))
    except ValidationError as error:
        raise Refused(validation_problems(error, path)) from None
    for key, value in settings.env.items():
        os.environ[key] = value
    folder = settings.neuronspark
    use_folder(path.parent.absolute() / Path(folder).expanduser() if folder else None)
    return settings


def resolve(path: str | Path) -> Path:
    """Absolute form of a path given by a person; relative ones that do not exist are looked up in work_root.

    A name found nowhere stays relative to work_root if there is one (a new line is made there by flows),
    else to the current directory.
    """
    given = Path(path).expanduser()
    if given.is_absolute():
        return given
    if given.exists():
        return given.resolve()
    root = load_host().work_root
    return (Path(root).expanduser() / given).absolute() if root else given.absolute()
