"""The record of what runs, the choice of a port, and the environment of our processes."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.home import Home, ServerRecord, read_record, write_record
from deployments.server import PortLost, choose_port, listens, port_free, wait_healthy
from deployments.settings import SETTINGS, prefect_environment
from trainer_core.line.identity import ProcessIdentity


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    home = Home(tmp_path / "prefect")
    assert read_record(home) == ServerRecord()
    me = ProcessIdentity.current()
    record = ServerRecord(port=4321, database="postgresql+asyncpg://u:p@h/d", server=me, workers={"gpu": me})
    write_record(home, record)
    assert read_record(home) == record
    assert stat.S_IMODE(home.record.stat().st_mode) == 0o600
    assert record.server_alive() and record.live_workers() == {"gpu": me}
    gone = replace(me, start_time="1")
    dead = replace(record, server=gone, workers={"gpu": gone, "data": me})
    assert not dead.server_alive() and set(dead.live_workers()) == {"data"}
    write_record(home, record.without_processes())
    assert read_record(home).port == 4321 and read_record(home).database == record.database


def test_a_taken_port_is_left_to_its_owner() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen(1)
        taken = stranger.getsockname()[1]
        assert not port_free(taken)
        chosen = choose_port(taken)
        assert chosen != taken and port_free(chosen)
    assert choose_port(taken) == taken


def test_a_port_is_ours_only_if_our_process_has_it() -> None:
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen(1)
        port = mine.getsockname()[1]
        assert listens(ProcessIdentity.current(), port)
        parent = ProcessIdentity.of(os.getppid())
        assert parent is not None and not listens(parent, port)
        assert not listens(replace(ProcessIdentity.current(), start_time="1"), port)
    assert not listens(ProcessIdentity.current(), port)


def test_a_server_that_lost_its_port_is_not_taken_for_the_one_that_has_it(tmp_path: Path) -> None:
    """The recorded process has ended, and a stranger answers on the port."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen(1)
        gone = replace(ProcessIdentity.current(), start_time="1")
        record = ServerRecord(port=stranger.getsockname()[1], server=gone)
        with pytest.raises(PortLost):
            wait_healthy(Home(tmp_path), record, seconds=5)


def test_the_environment_names_only_our_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = {
        "PATH": "p",
        "PREFECT_API_URL": "https://team/api",
        "PREFECT_API_KEY": "secret",
        "PREFECT_PROFILE": "team",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "NSTRAIN_HOST": "host.json",
    }
    record = ServerRecord(port=4999)
    environment = prefect_environment(Home(tmp_path), record, base)
    assert environment["PREFECT_API_URL"] == "http://127.0.0.1:4999/api"
    assert environment["PREFECT_SERVER_API_PORT"] == "4999" and environment["PREFECT_HOME"] == str(tmp_path)
    assert not {"PREFECT_API_KEY", "PREFECT_PROFILE"} & set(environment)
    assert environment["NSTRAIN_HOST"] == str(tmp_path / "host.json")
    assert environment["PREFECT_WORKER_QUERY_SECONDS"] == "1"  # a wish of the user's
    assert "PREFECT_SERVER_DATABASE_CONNECTION_URL" not in environment
    other = prefect_environment(Home(tmp_path), replace(record, database="postgresql://x"), base)
    assert other["PREFECT_SERVER_DATABASE_CONNECTION_URL"] == "postgresql://x"


def test_prefect_knows_every_setting() -> None:
    """A setting that Prefect renamed would be ignored without a word."""
    from prefect.settings.legacy import _get_settings_fields
    from prefect.settings.models.root import Settings

    known = _get_settings_fields(Settings)
    ours = {name for name in SETTINGS if name != "DO_NOT_TRACK"}
    assert not ours - set(known)
