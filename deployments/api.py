"""A few calls of Prefect's REST API with the standard library: importing Prefect's client takes two seconds.

Owns no policy. Every call has a timeout; a server that does not answer raises `Unreachable`. An answer that
says "try again" (SQLite is busy) is tried again, so creating a run carries a key that makes it happen once.
"""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from typing import Any

from trainer_core.errors import NstrainError

ACTIVE_STATES = ("RUNNING", "CANCELLING", "PENDING")
"""State types of a run that has, or is about to have, a process."""


_TRY_AGAIN = (429, 503)
_NUM_TRIES = 6


class Unreachable(NstrainError):
    """No answer, or not the answer of a Prefect server."""

    exit_code = 20


class ApiError(NstrainError):
    """The server answered with an error."""

    exit_code = 1

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Api:
    """A Prefect server's API."""

    url: str
    """Address that ends in /api."""
    timeout_seconds: float = 10.0
    """Longest wait for one answer."""

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One request, repeated while the server asks for patience; the decoded answer."""
        for attempt in range(_NUM_TRIES):
            try:
                return self._call_once(method, path, body)
            except ApiError as error:
                if error.status not in _TRY_AGAIN or attempt == _NUM_TRIES - 1:
                    raise
                time.sleep(0.25 * 2**attempt)
        raise AssertionError

    def _call_once(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}{path}", data=data, method=method, headers={"Content-Type": "application/json"}
        )
        if credentials := os.environ.get("PREFECT_API_AUTH_STRING"):
            token = base64.b64encode(credentials.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        # Our server is on this host: a proxy from the environment would only get in the way.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self.timeout_seconds) as response:
                payload = response.read()
        except urllib.error.HTTPError as error:
            detail = error.read().decode(errors="replace")[:500]
            raise ApiError(f"{method} {path}: {error.code} {detail}", error.code) from None
        except (OSError, urllib.error.URLError) as error:
            raise Unreachable(f"{self.url}: no answer ({getattr(error, 'reason', error)})") from None
        try:
            return json.loads(payload) if payload else None
        except ValueError:
            raise Unreachable(f"{self.url}: this is not a Prefect server") from None

    def healthy(self) -> bool:
        """Whether the server answers and is ready."""
        try:
            return self._call_once("GET", "/health", None) is True
        except (Unreachable, ApiError):
            return False

    def ensure_pool(self, name: str) -> None:
        """Create a process work pool; one that exists is left as it is."""
        try:
            self.call("POST", "/work_pools/", {"name": name, "type": "process"})
        except ApiError as error:
            if error.status != 409:
                raise

    def online_workers(self, pool: str) -> set[str]:
        """Names of the workers that poll a pool."""
        rows = self.call("POST", f"/work_pools/{pool}/workers/filter", {"limit": 200})
        return {str(row["name"]) for row in rows if row.get("status") == "ONLINE"}

    def deployments(self) -> set[str]:
        """All deployments as `flow/deployment`."""
        rows = self.call("POST", "/deployments/filter", {"limit": 200})
        flows = self.call("POST", "/flows/filter", {"limit": 200})
        names = {flow["id"]: flow["name"] for flow in flows}
        return {f"{names.get(row['flow_id'], '?')}/{row['name']}" for row in rows}

    def deployment_id(self, name: str) -> str:
        """Id of the deployment `flow/deployment`."""
        return str(self.call("GET", f"/deployments/name/{name}")["id"])

    def create_run(self, deployment: str, parameters: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Submit a run of `flow/deployment`; `options` are more fields of the request (tags, name)."""
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}, **options}
        body.setdefault("idempotency_key", str(uuid.uuid4()))
        run: dict[str, Any] = self.call(
            "POST", f"/deployments/{self.deployment_id(deployment)}/create_flow_run", body
        )
        return run

    def run(self, run_id: str) -> dict[str, Any]:
        """A flow run with its state."""
        value: dict[str, Any] = self.call("GET", f"/flow_runs/{run_id}")
        return value

    def active_runs(self, flow: str) -> list[dict[str, Any]]:
        """Runs of a flow that have, or are about to have, a process."""
        rows: list[dict[str, Any]] = self.call(
            "POST",
            "/flow_runs/filter",
            {
                "flows": {"name": {"any_": [flow]}},
                "flow_runs": {"state": {"type": {"any_": list(ACTIVE_STATES)}}},
                "limit": 200,
            },
        )
        return rows
