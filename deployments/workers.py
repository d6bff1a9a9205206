"""The pools, the workers that run their flows, and the deployments of this checkout.

One process worker per pool. `control` is a pool of its own so that a stop never queues behind what it should
stop; `data` is, so that a line that waits for its GPU does not hold up its preparer.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace

import yaml

from deployments.api import Api
from deployments.home import Home, ServerRecord, checkout
from deployments.processes import start_detached
from deployments.server import log_tail
from deployments.settings import prefect_environment
from trainer_core.errors import NstrainError

POOLS: tuple[str, ...] = ("gpu", "data", "control")
"""Process work pools, none with a limit."""

_POLL_SECONDS = 0.3


def worker_name(pool: str) -> str:
    """How the worker of a pool on this host is called in the UI."""
    return f"nstrain-{pool}-{socket.gethostname()}"


def start_workers(home: Home, record: ServerRecord) -> ServerRecord:
    """Start the worker of each pool that has none; returns the record with all of them."""
    environment = prefect_environment(home, record, os.environ)
    workers = record.live_workers()
    for pool in POOLS:
        if pool in workers:
            continue
        command = [sys.executable, "-m", "prefect", "--no-prompt", "worker", "start"]
        command += ["--pool", pool, "--type", "process", "--name", worker_name(pool)]
        workers[pool] = start_detached(
            command, log=home.log(f"worker-{pool}"), env=environment, cwd=checkout()
        )
    return replace(record, workers=workers)


def wait_online(home: Home, record: ServerRecord, *, seconds: float = 120.0) -> None:
    """Wait until the server has heard from every worker."""
    api = Api(record.url)
    waiting = set(POOLS)
    deadline = time.monotonic() + seconds
    while True:
        waiting = {pool for pool in waiting if worker_name(pool) not in api.online_workers(pool)}
        if not waiting:
            return
        for pool in waiting:
            if not record.workers[pool].alive():
                raise NstrainError(f"the worker of pool {pool} ended:\n{log_tail(home, f'worker-{pool}')}")
        if time.monotonic() > deadline:
            names = ", ".join(sorted(waiting))
            raise NstrainError(f"no sign of life from the workers of {names} after {seconds:.0f} seconds")
        time.sleep(_POLL_SECONDS)


def declared_deployments() -> set[str]:
    """The deployments of prefect.yaml as `flow/deployment`."""
    content = yaml.safe_load((checkout() / "prefect.yaml").read_text())
    return {f"{entry['entrypoint'].rpartition(':')[2]}/{entry['name']}" for entry in content["deployments"]}


def deploy_all(home: Home, record: ServerRecord) -> int:
    """Create or update every deployment of prefect.yaml, from any directory; returns their number."""
    finished = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=checkout(),
        env=prefect_environment(home, record, os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    missing = declared_deployments() - Api(record.url).deployments()
    if finished.returncode != 0 or missing:
        what = f"missing: {', '.join(sorted(missing))}" if missing else f"exit code {finished.returncode}"
        raise NstrainError(f"`prefect deploy --all` failed ({what}):\n{finished.stdout.strip()}")
    return len(declared_deployments())
