"""A hub of our own on this machine: it serves data sets as the real one does, and misbehaves on request.

    with running_hub() as hub:
        commit = hub.commit("owner/name", {"data/a.parquet": b"..."})
        hub.plan(r"GET .*a\\.parquet", "status:503", "cut:100", "corrupt")

A repository has commits, each a whole tree, and branches that point at them; a commit can be taken away as a
rewritten history does. The n-th request that matches a plan takes its n-th action; one that ends in "*" is
taken for ever, and otherwise requests are answered well again after the last. Actions:

    ok  status:N  status:N:retry-after=S  cut:N (N bytes of the body, then the end of the connection)
    corrupt (same size, last byte changed)  stall:S (waits first)  stall-after:N:S (N bytes, then waits)
    reset (the connection ends at once)  gated (as for terms that nobody accepted)
"""

from __future__ import annotations

import hashlib
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer

import pytest

from tests.tools.hub_answers import Answers


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request as it came."""

    key: str
    """Method and path."""
    span: str | None
    """Its Range header."""
    token: str | None
    """Its Authorization header."""
    host: str
    """The host name that it was sent to."""
    action: str
    """What was done with it."""
    time: float
    """Monotonic seconds at which it came."""


@dataclass
class Repo:
    """One data set."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files by commit."""
    times: dict[str, datetime] = field(default_factory=dict)
    """When each commit was made."""
    branches: dict[str, str] = field(default_factory=dict)
    """The commit that each branch or tag stands for."""
    token: str | None = None
    """Whoever does not send it is told to accept the terms."""


@dataclass
class _Plan:
    pattern: re.Pattern[str]
    actions: tuple[str, ...]
    used: int = 0


class Hub:
    """The state of the hub; `url` is where it answers."""

    def __init__(self, *, page_size: int = 50, redirect: bool = False) -> None:
        self.page_size = page_size
        self.redirect = redirect
        """Whether large files are answered by a redirect to another host name, as by a content network."""
        self.xet: str | None = None
        """What becomes of downloads by xet, if that is offered: `no token`, or `no storage` to be reached."""
        self.log: list[Request] = []
        self.repos: dict[str, Repo] = {}
        self.lock = threading.Lock()
        self.open_sockets: set[socket.socket] = set()
        self.stopping = threading.Event()
        self._plans: list[_Plan] = []
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def network_url(self) -> str:
        """The other host name."""
        return f"http://localhost:{self._port}"

    def commit(
        self, repo: str, files: Mapping[str, bytes], *, branch: str = "main", age_hours: float = 100.0
    ) -> str:
        """Add a commit with exactly these files, let the branch point at it, and return its 40 digits."""
        known = self.repos.setdefault(repo, Repo())
        digest = hashlib.sha1(f"{repo} {branch} {len(known.times)}".encode())
        for path in sorted(files):
            digest.update(path.encode() + b"\0" + files[path])
        commit = digest.hexdigest()
        known.commits[commit] = dict(files)
        known.times[commit] = datetime.now(UTC) - timedelta(hours=age_hours)
        known.branches[branch] = commit
        return commit

    def forget(self, repo: str, commit: str) -> None:
        """The history was rewritten: the commit is gone."""
        del self.repos[repo].commits[commit]

    def plan(self, pattern: str, *actions: str) -> None:
        """What the next requests whose "METHOD path" matches get; the newest matching plan counts."""
        with self.lock:
            self._plans.insert(0, _Plan(re.compile(pattern), actions))

    def clear_plans(self) -> None:
        """Answer everything well."""
        with self.lock:
            self._plans.clear()

    def requests(self, pattern: str = "") -> list[Request]:
        """The requests so far whose "METHOD path" matches."""
        with self.lock:
            return [request for request in self.log if re.search(pattern, request.key)]

    def action(self, key: str) -> str:
        """What a plan says about a request that came."""
        with self.lock:
            for plan in self._plans:
                if not plan.pattern.search(key):
                    continue
                number, plan.used = plan.used, plan.used + 1
                last = plan.actions[-1]
                if number < len(plan.actions):
                    return plan.actions[number].removesuffix("*")
                return last.removesuffix("*") if last.endswith("*") else "ok"
        return "ok"

    def away(self) -> None:
        """Refuse connections, and end those that are open."""
        server, self._server = self._server, None
        assert server is not None
        self.stopping.set()
        server.shutdown()
        server.server_close()
        with self.lock:
            left = list(self.open_sockets)
        for connection in left:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it ended by itself

    def back(self) -> None:
        """Answer, on the port of the first time."""
        self.stopping.clear()
        hub = self

        class Handler(Answers):
            pass

        Handler.hub = hub
        self._server = _Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def is_away(self) -> bool:
        return self._server is None

    def note(self, request: Request) -> None:
        """Keep a request for the test."""
        with self.lock:
            self.log.append(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections end in the middle here all the time."""


@contextmanager
def running_hub(*, page_size: int = 50, redirect: bool = False) -> Iterator[Hub]:
    """A hub that answers until the block ends."""
    hub = Hub(page_size=page_size, redirect=redirect)
    hub.back()
    try:
        yield hub
    finally:
        if not hub.is_away:
            hub.away()


@contextmanager
def hub_in_use(patch: pytest.MonkeyPatch, *, page_size: int = 50, redirect: bool = False) -> Iterator[Hub]:
    """A running hub that this process's downloads go to, whatever the environment names."""
    with running_hub(page_size=page_size, redirect=redirect) as hub:
        patch.setenv("HF_ENDPOINT", hub.url)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_HOME"):
            patch.delenv(name, raising=False)
        yield hub


def wait_until(condition: object, *, seconds: float = 30.0) -> None:
    """Wait for something that another thread or process does."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)
