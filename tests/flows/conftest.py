"""One Prefect server for all flow tests, without heartbeats, and a home of its own for leases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[str]:
    """URL of a server that lives as long as the test session."""
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        PREFECT_LOGGING_TO_API_ENABLED,
        PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL,
        PREFECT_TASKS_DEFAULT_NO_CACHE,
        temporary_settings,
    )
    from prefect.testing.utilities import prefect_test_harness

    quiet = {
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        PREFECT_LOGGING_TO_API_ENABLED: False,
        PREFECT_TASKS_DEFAULT_NO_CACHE: True,
        PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL: 0.5,
    }
    with temporary_settings(updates=quiet), prefect_test_harness(server_startup_timeout=120):
        yield str(PREFECT_API_URL.value())


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, so that no test waits for a device that another process leases."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("NSTRAIN_HOST", raising=False)
    return home
