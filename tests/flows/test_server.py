"""A host's server and workers, for real: `nstrain up`, Prefect's own command, a run, and `nstrain down`.

One server for the whole file; the tests build on each other in its order, as a day at a host does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deployments.workers import POOLS, declared_deployments, worker_name
from tests.tools.host import BIN, Host, host_at, processes_of
from tests.tools.tiny_data import disk_line
from trainer_core.data.heldout.validation import make_heldout
from trainer_core.line.checkpoints import newest
from trainer_core.line.ledger import live_rows
from trainer_core.line.status import line_status
from trainer_core.ops.new import new_line

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class CrowdedHost(Host):
    """A host on which somebody else already listens where its server would."""

    stranger: socket.socket
    """Listens on the port that the record asks for."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrowdedHost]:
    """A host whose wished port is a stranger's; whatever is left is ended."""
    root = tmp_path_factory.mktemp("host")
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen(8)
        with host_at(root, port=stranger.getsockname()[1]):
            yield CrowdedHost(root=root, stranger=stranger)


def test_up_brings_everything_up_beside_a_stranger(host: Host) -> None:
    taken = host.stranger.getsockname()[1]
    finished = host.run("nstrain", "up")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    record = host.record
    assert record.port != taken and f"port {taken} is taken" in finished.stdout
    assert record.server_alive() and set(record.live_workers()) == set(POOLS)
    assert declared_deployments() <= host.api.deployments()
    for pool in POOLS:
        assert host.api.call("GET", f"/work_pools/{pool}")["concurrency_limit"] is None
        assert worker_name(pool) in host.api.online_workers(pool)


def test_up_again_starts_only_what_is_missing(host: Host) -> None:
    before = host.record
    os.kill(before.workers["data"].pid, signal.SIGKILL)
    finished = host.run("nstrain", "up")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    after = host.record
    assert after.server == before.server and "workers for data started" in finished.stdout
    same = {pool for pool in POOLS if after.workers[pool] == before.workers[pool]}
    assert same == {"gpu", "control"} and set(after.live_workers()) == set(POOLS)


def test_other_host_settings_are_refused_while_workers_run(host: Host) -> None:
    other = host.root / "other.json"
    other.write_text('{"format": "host/1"}')
    finished = host.run("nstrain", "up", NSTRAIN_HOST=str(other))
    assert finished.returncode == 20 and "nstrain down" in finished.stderr
    database = host.run("nstrain", "up", "--database", "postgresql+asyncpg://nobody@localhost/x")
    assert database.returncode == 20 and "database" in database.stderr


def test_doctor_sees_the_server_the_profile_and_the_plugin(host: Host) -> None:
    finished = host.run("nstrain", "doctor", "--json")
    assert finished.returncode == 0, finished.stdout
    states = {check["name"]: check["state"] for check in json.loads(finished.stdout)["checks"]}
    assert {states[name] for name in ("server", "workers", "profile", "plugin")} == {"ok"}


def test_prefects_command_takes_a_bare_name_and_the_worker_has_the_host_settings(host: Host) -> None:
    """The run fails because there is no such line; its message shows where the name was looked up."""
    finished = host.run("prefect", "deployment", "run", "status", "-p", "line=nowhere", "--watch")
    assert "nstrain: status means deployment status/status" in finished.stderr
    assert finished.returncode == 1
    runs = host.api.call("POST", "/flow_runs/filter", {"flows": {"name": {"any_": ["status"]}}})
    assert str(host.root / "nowhere") in runs[0]["state"]["message"]


def test_run_without_a_server_names_up_and_leaves_others_alone(tmp_path: Path, host: Host) -> None:
    """The server of another home answers on the port that this one would use."""
    line = _make_line(tmp_path)
    finished = host.run("nstrain", "run", str(line), HOME=str(tmp_path))
    assert finished.returncode == 20 and "`nstrain up`" in finished.stderr


def test_down_stops_a_running_line_with_a_checkpoint_and_leaves_no_process(host: Host) -> None:
    line = _make_line(host.root)
    assert host.run("prefect", "deployment", "run", "trunk").returncode == 0
    deadline = time.monotonic() + 300
    while len(live_rows(line / "metrics.jsonl")) < 3:
        assert time.monotonic() < deadline, (host.home.logs / "worker-gpu.log").read_text()[-3000:]
        time.sleep(0.2)
    assert line_status(line)["state"] == "training"
    finished = subprocess.run(
        [str(BIN / "nstrain"), "down"],
        env=host.without_settings(),
        cwd=host.root.parent,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "asked it to stop" in finished.stdout and f"{line}: stopped" in finished.stdout
    status, last = line_status(line), newest_update(line)
    assert status["state"] == "stopped" and last == status["update"] >= 3
    assert processes_of(host.root) == []
    assert host.run("nstrain", "down").stdout.strip() == "nothing runs"


def test_up_in_the_foreground_starts_again_what_ends_and_goes_down_on_sigterm(host: Host) -> None:
    log = host.root / "foreground.log"
    with open(log, "wb") as output:
        service = subprocess.Popen(
            [str(BIN / "nstrain"), "up", "--foreground"],
            env=host.environment(),
            cwd=host.root,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def wait_for(sentence: str) -> None:
        deadline = time.monotonic() + 240
        while sentence not in log.read_text():
            assert time.monotonic() < deadline and service.poll() is None, log.read_text()
            time.sleep(0.2)

    wait_for("ready after")
    first = host.record.workers["control"]
    os.kill(first.pid, signal.SIGKILL)
    wait_for("workers for control started")
    assert host.record.workers["control"] != first and host.record.server_alive()
    service.send_signal(signal.SIGTERM)
    assert service.wait(timeout=120) == 0, log.read_text()
    assert processes_of(host.root) == []


def _make_line(root: Path) -> Path:
    """A line `root`/trunk with minutes of work: nothing a test could reach the end of."""
    data = disk_line(root / "made", cycle_tokens=32_768, files=4, docs=1500, consumer=False)
    make_heldout(data)
    line = root / "trunk"
    settings = ('lengths=[{"length":64,"rows":4}]', 'checkpoints={"every_updates":1000}')
    new_line(line, model="llama-cpu", data=data, peak_lr=1e-3, tokens_per_update=1024, settings=settings)
    return line


def newest_update(line: Path) -> int:
    from trainer_core.line.paths import LinePaths

    info = newest(LinePaths(line))
    assert info is not None
    return info.update
