"""The Prefect server of this host: which port, start, wait until it answers.

A server that `nstrain up` did not start is never touched; where one has the port, the next free port is used.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import replace
from importlib.metadata import version

import psutil

from deployments.api import Api
from deployments.home import DEFAULT_PORT, Home, ServerRecord, checkout
from deployments.processes import end, start_detached
from deployments.settings import prefect_environment
from trainer_core.errors import NstrainError
from trainer_core.line.identity import ProcessIdentity

_NUM_PORTS = 100
_POLL_SECONDS = 0.2


def port_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose_port(recorded: int) -> int:
    """The recorded port if it is free, else the first free one from 4200 on."""
    candidates: list[int] = [recorded, *range(DEFAULT_PORT, DEFAULT_PORT + _NUM_PORTS)]
    for port in candidates:
        if port_free(port):
            return port
    raise NstrainError(f"no free port between {DEFAULT_PORT} and {DEFAULT_PORT + _NUM_PORTS - 1}")


def start_server(home: Home, record: ServerRecord) -> ServerRecord:
    """Start the server in the background; returns the record with its process and port, before it answers."""
    record = replace(record, port=choose_port(record.port), version=version("prefect"))
    home.root.mkdir(parents=True, exist_ok=True)
    identity = start_detached(
        [sys.executable, "-m", "prefect", "--no-prompt", "server", "start"],
        log=home.log("server"),
        env=prefect_environment(home, record, os.environ),
        cwd=checkout(),
    )
    return replace(record, server=identity)


class PortLost(NstrainError):
    """Another server took the port between the choice and the start."""


def listens(identity: ProcessIdentity, port: int) -> bool:
    """Whether this very process has the port: an answer alone may come from somebody else's server."""
    try:
        connections = psutil.Process(identity.pid).net_connections(kind="tcp")
    except psutil.Error:
        return False
    return identity.alive() and any(
        connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        for connection in connections
    )


def wait_healthy(home: Home, record: ServerRecord, *, seconds: float = 180.0) -> None:
    """Wait until the recorded process answers on its port.

    Raises PortLost when it ended because somebody else has the port; else ends it and raises with the end of
    its log.
    """
    assert record.server is not None
    api = Api(record.url, timeout_seconds=5.0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not record.server.alive():
            if not port_free(record.port):
                raise PortLost(f"port {record.port} is taken")
            raise NstrainError(f"the Prefect server ended while starting:\n{log_tail(home, 'server')}")
        if listens(record.server, record.port) and api.healthy():
            return
        time.sleep(_POLL_SECONDS)
    end([record.server], grace_seconds=5.0)
    tail = log_tail(home, "server")
    raise NstrainError(f"{record.url}: no answer in {seconds:.0f} seconds, so the server was ended:\n{tail}")


def log_tail(home: Home, name: str, *, num_lines: int = 15) -> str:
    """The end of a log with its path, for an error message."""
    path = home.log(name)
    try:
        lines = path.read_text(errors="replace").splitlines()[-num_lines:]
    except OSError:
        lines = ["(no log)"]
    return "\n".join([*(f"  {line}" for line in lines), f"  ({path})"])
