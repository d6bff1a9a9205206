"""The environment of the processes that nstrain starts: server, workers, and Prefect's command.

One table of settings with the reason for each; everything that names another server is taken out, so that the
user's own Prefect configuration and ours never mix. Returns values, changes no process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from deployments.home import Home, ServerRecord

SETTINGS: dict[str, str] = {
    # A slot's lease must survive a server restart; with the memory storage it leaks for ever.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # Events parked for ordering survive a restart.
    "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "prefect.server.events.ordering.db",
    # A dead flow process is noticed within a few of these.
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60",
    # How soon a worker sees a new run.
    "PREFECT_WORKER_QUERY_SECONDS": "3",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # A task that was done once for the same inputs must run again after a rollback.
    "PREFECT_TASKS_DEFAULT_NO_CACHE": "true",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "trainer_core",
    # A wrong address must be an error, not a second, empty server.
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
}

FOREIGN: tuple[str, ...] = (
    "PREFECT_API_URL",
    "PREFECT_API_KEY",
    "PREFECT_PROFILE",
    "PREFECT_PROFILES_PATH",
    "PREFECT_HOME",
    "PREFECT_PLUGINS_ENABLED",
    "PREFECT_API_DATABASE_CONNECTION_URL",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE",
    "PREFECT_SERVER_API_HOST",
    "PREFECT_SERVER_API_PORT",
    "PREFECT_SERVER_UI_API_URL",
    "PREFECT_UI_API_URL",
)
"""Settings that say which server, database or profile; ours replace them."""


def prefect_environment(home: Home, record: ServerRecord, base: Mapping[str, str]) -> dict[str, str]:
    """Environment for a process of ours, from the caller's environment `base`."""
    environment = {name: value for name, value in base.items() if name not in FOREIGN}
    for name, value in SETTINGS.items():
        environment.setdefault(name, value)
    environment["PREFECT_HOME"] = str(home.root)
    environment["PREFECT_API_URL"] = record.url
    environment["PREFECT_SERVER_API_HOST"] = "127.0.0.1"
    environment["PREFECT_SERVER_API_PORT"] = str(record.port)
    environment["PYTHONUNBUFFERED"] = "1"
    if record.database is not None:
        environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = record.database
    if host_file := environment.get("NSTRAIN_HOST"):
        environment["NSTRAIN_HOST"] = str(Path(host_file).expanduser().absolute())
    return environment
