"""A user's home with a Prefect server of its own, brought up by the real `nstrain up`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from deployments.api import Api
from deployments.home import Home, ServerRecord, read_record, write_record

BIN = Path(sys.executable).parent
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass(frozen=True)
class Host:
    """A home, its work root, and commands run as its user."""

    root: Path
    """The user's home and the work root of the host settings."""

    @property
    def home(self) -> Home:
        return Home(self.root / ".nstrain" / "prefect")

    @property
    def record(self) -> ServerRecord:
        return read_record(self.home)

    @property
    def api(self) -> Api:
        return Api(self.record.url)

    def environment(self, **more: str) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "NSTRAIN"))}
        host = {"HOME": str(self.root), "NSTRAIN_HOST": str(self.root / "host.json"), "DO_NOT_TRACK": "1"}
        return clean | host | {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"} | more

    def without_settings(self) -> dict[str, str]:
        """The environment of a terminal that never heard of the host settings."""
        return {name: value for name, value in self.environment().items() if name != "NSTRAIN_HOST"}

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command of the environment's bin directory, from a directory that is not the checkout."""
        return subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            env=self.environment(**more),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
        )

    def up(self) -> None:
        """`nstrain up`, which must succeed."""
        finished = self.run("nstrain", "up")
        assert finished.returncode == 0, finished.stdout + finished.stderr

    def start(self, deployment: str, **parameters: Any) -> str:
        """A run of a deployment through the REST API; its id."""
        return str(self.api.create_run(deployment, parameters)["id"])

    def state(self, run: str) -> dict[str, Any]:
        """State of a run."""
        value: dict[str, Any] = self.api.run(run)["state"]
        return value

    def wait(self, run: str, seconds: float = 120.0) -> dict[str, Any]:
        """The final state of a run."""
        return until(lambda: (s := self.state(run))["type"] in FINAL and s, seconds, lambda: self.log_tail())

    def tasks(self, run: str) -> dict[str, dict[str, Any]]:
        """Task runs of a flow run by name."""
        body = {"flow_runs": {"id": {"any_": [run]}}, "limit": 200}
        return {task["name"]: task for task in self.api.call("POST", "/task_runs/filter", body)}

    def log_tail(self) -> str:
        """The end of the gpu worker's log, for a failed assertion."""
        return (self.home.logs / "worker-gpu.log").read_text()[-3000:]


def until(condition: Callable[[], Any], seconds: float, why: Callable[[], str] = lambda: "") -> Any:
    """The first true value of `condition`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds} s in vain; {why()}"
        time.sleep(0.1)
    return value


def processes_of(root: Path) -> list[psutil.Process]:
    """Live processes that were started with this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(root) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@contextmanager
def host_at(root: Path, *, port: int) -> Iterator[Host]:
    """A home whose server will ask for `port`; every process started with it is ended afterwards."""
    (root / "host.json").write_text(json.dumps({"format": "host/1", "work_root": str(root)}))
    host = Host(root=root)
    write_record(host.home, ServerRecord(port=port))
    try:
        yield host
    finally:
        for process in processes_of(root):
            process.kill()
