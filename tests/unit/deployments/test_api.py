"""The REST calls against a small HTTP server that answers as Prefect's would: patience, errors, strangers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from deployments import api as api_module
from deployments.api import Api, ApiError, Unreachable


@dataclass
class Served:
    """What the server answers, in order, and what it was asked."""

    url: str
    answers: list[tuple[int, str]]
    asked: list[tuple[str, str, Any]] = field(default_factory=list)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(api_module.time, "sleep", lambda _: None)
    state = Served(url="", answers=[])

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            state.asked.append((self.command, self.path, body))
            status, text = state.answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/api"
    yield state
    server.shutdown()
    server.server_close()


def test_a_busy_database_is_asked_again_and_the_run_is_made_once(served: Served) -> None:
    served.answers = [(200, '{"id": "d1"}'), (503, "{}"), (503, "{}"), (201, '{"id": "r1", "name": "n"}')]
    assert Api(served.url).create_run("trunk/trunk", {"line": "L"})["id"] == "r1"
    posts = [body for method, _, body in served.asked if method == "POST"]
    assert len(posts) == 3 and len({body["idempotency_key"] for body in posts}) == 1
    assert posts[0]["parameters"] == {"line": "L"}


def test_an_error_is_told_with_its_status(served: Served) -> None:
    served.answers = [(404, '{"detail": "Deployment not found"}')]
    with pytest.raises(ApiError, match="Deployment not found") as caught:
        Api(served.url).deployment_id("trunk/trunk")
    assert caught.value.status == 404 and len(served.asked) == 1


def test_a_pool_that_exists_is_left(served: Served) -> None:
    served.answers = [(409, "{}")]
    Api(served.url).ensure_pool("gpu")
    served.answers = [(422, "{}")]
    with pytest.raises(ApiError):
        Api(served.url).ensure_pool("gpu")


def test_health(served: Served) -> None:
    served.answers = [(200, "true"), (200, "<html>"), (500, "")]
    api = Api(served.url)
    assert [api.healthy(), api.healthy(), api.healthy()] == [True, False, False]
    with pytest.raises(Unreachable, match="no answer"):
        Api("http://127.0.0.1:9/api", timeout_seconds=2).call("GET", "/health")
