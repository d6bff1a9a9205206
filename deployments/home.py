"""Where a host keeps its Prefect server: one directory for database, storage, logs, and a record.

Owns the layout below `~/.nstrain/prefect` and the record `server.json`; starts and ends nothing. The record
names every process that `nstrain up` started, so that `nstrain down` never has to guess.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer_core.errors import Refused
from trainer_core.host import state_dir
from trainer_core.line.files import read_json, write_json
from trainer_core.line.identity import ProcessIdentity

FORMAT = "server/1"
DEFAULT_PORT = 4200


@dataclass(frozen=True)
class Home:
    """Paths below the directory that Prefect calls its home."""

    root: Path

    @classmethod
    def default(cls) -> Home:
        """The home of this user."""
        return cls(state_dir() / "prefect")

    @property
    def record(self) -> Path:
        """Which processes run, on which port, against which database."""
        return self.root / "server.json"

    @property
    def logs(self) -> Path:
        """Output of the server and of the workers."""
        return self.root / "logs"

    @property
    def lock(self) -> Path:
        """Held while `up` or `down` works, so that two of them never start two servers."""
        return self.root / "lock"

    def log(self, name: str) -> Path:
        """Log file of the server (`server`) or of the worker of a pool (`worker-gpu`)."""
        return self.logs / f"{name}.log"


@dataclass(frozen=True, kw_only=True)
class ServerRecord:
    """What `nstrain up` started. Port and database outlive the processes: the next `up` uses them again."""

    port: int = DEFAULT_PORT
    """Port on the loopback interface."""
    database: str | None = None
    """Database URL of the server; None is the SQLite file in the home."""
    host_file: str | None = None
    """$NSTRAIN_HOST that the workers were started with; None when it was not set."""
    version: str | None = None
    """Version of Prefect that the server was started with."""
    server: ProcessIdentity | None = None
    """The server's process."""
    workers: dict[str, ProcessIdentity] = field(default_factory=dict)
    """The worker's process of each pool."""

    @property
    def url(self) -> str:
        """Address of the API."""
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def ui(self) -> str:
        """Address for a browser."""
        return f"http://127.0.0.1:{self.port}"

    def server_alive(self) -> bool:
        """Whether the recorded server process runs."""
        return self.server is not None and self.server.alive()

    def live_workers(self) -> dict[str, ProcessIdentity]:
        """The recorded workers that still run."""
        return {pool: worker for pool, worker in self.workers.items() if worker.alive()}

    def without_processes(self) -> ServerRecord:
        """The same settings with nothing running."""
        return replace(self, server=None, workers={})


def read_record(home: Home) -> ServerRecord:
    """The record of the last `up`; defaults when there was none."""
    if not home.record.exists():
        return ServerRecord()
    value = read_json(home.record)
    workers = {
        pool: ProcessIdentity.from_dict(entry) for pool, entry in dict(value.get("workers", {})).items()
    }
    return ServerRecord(
        port=int(value.get("port", DEFAULT_PORT)),
        database=value.get("database"),
        host_file=value.get("host_file"),
        version=value.get("version"),
        server=ProcessIdentity.from_dict(value.get("server")),
        workers={pool: worker for pool, worker in workers.items() if worker is not None},
    )


def write_record(home: Home, record: ServerRecord) -> None:
    """Replace the record; readable by the user only, since a database URL can hold a password."""
    home.root.mkdir(parents=True, exist_ok=True)
    value: dict[str, Any] = {
        "format": FORMAT,
        "url": record.url,
        "port": record.port,
        "database": record.database,
        "host_file": record.host_file,
        "version": record.version,
        "server": record.server.to_dict() if record.server else None,
        "workers": {pool: worker.to_dict() for pool, worker in record.workers.items()},
    }
    previous = os.umask(0o077)
    try:
        write_json(home.record, value)
    finally:
        os.umask(previous)


def checkout() -> Path:
    """The source directory that holds prefect.yaml; nstrain is installed editable: it is beside us."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "prefect.yaml").is_file():
        raise Refused(
            f"{root}: prefect.yaml is not here; nstrain runs its deployments from a source checkout, "
            "install it with `pip install -e .` in one"
        )
    return root
