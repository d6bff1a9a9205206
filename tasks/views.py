"""The one place through which a running line talks to the Prefect server.

A view: everything here may fail, be late or be lost, and nothing here raises, blocks its caller, or slows
a line. Work is done on a thread of its own with short timeouts; of several things to show under one key
only the newest is kept, so a dead server costs no memory either. What was lost is counted.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

TIMEOUT_SECONDS = 5.0
"""Longest wait for one answer of the server."""

_RETRY_SECONDS = 5.0
_POLL_SECONDS = 1.0

Show = Callable[["SyncPrefectClient"], None]
"""Shows one thing; called on the views' thread."""


def new_client(timeout_seconds: float = TIMEOUT_SECONDS) -> SyncPrefectClient:
    """A client of its own, which does not retry a dead server."""
    from prefect.client.orchestration import get_client

    return get_client(sync_client=True, httpx_settings={"timeout": timeout_seconds})


def server_answers() -> bool:
    """Whether the server is there; bounded in time, never raises."""
    import httpx
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    try:
        return url is None or httpx.get(f"{url}/health", timeout=2.0).status_code == 200
    except Exception:
        return False


def await_server(seconds: float) -> bool:
    """Wait until the server is there, at most this long: a run's last state should not be lost with it."""
    end = time.monotonic() + seconds
    while not server_answers():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


class Views:
    """A queue of things to show with one thread behind it; closed at the end of a run."""

    def __init__(self) -> None:
        self.dropped = 0
        """Things that were not shown, because showing failed or a newer one took their place unshown."""
        self.last_error = ""
        """Why the last failure happened."""
        self._waiting: OrderedDict[str, Show] = OrderedDict()
        self._changed = threading.Condition()
        self._closing = False
        self._working = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="views", daemon=True)
        self._thread.start()

    def put(self, key: str, show: Show) -> None:
        """Show this when possible, in place of what waits under the same key."""
        with self._changed:
            if self._waiting.pop(key, None) is not None:
                self.dropped += 1
            self._waiting[key] = show
            self._changed.notify_all()

    def close(self, seconds: float = 10.0) -> None:
        """Show what waits, at most this long, and end."""
        end = time.monotonic() + seconds
        with self._changed:
            while (self._waiting or self._working) and time.monotonic() < end:
                self._changed.wait(0.1)
            self._closing = True
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                key, show = self._waiting.popitem(last=False)
                self._working = True
            failed = not self._try(show)
            with self._changed:
                self._working = False
                if failed and key not in self._waiting and not self._closing:
                    self._waiting[key] = show
                self._changed.notify_all()
                if failed:
                    self._changed.wait_for(lambda: self._closing, _RETRY_SECONDS)

    def _try(self, show: Show) -> bool:
        """Show one thing; False when it should be tried again because the server did not answer."""
        try:
            with new_client() as client:
                show(client)
            return True
        except Exception as error:
            self.last_error = f"{type(error).__name__}: {error}"
            if server_answers():  # then it is the thing itself that cannot be shown
                self.dropped += 1
                return True
            return False


def identity_of_run() -> dict[str, Any]:
    """Ids of the flow run and task run of the caller, as fields of an artifact."""
    from prefect.context import FlowRunContext, TaskRunContext

    flow, task = FlowRunContext.get(), TaskRunContext.get()
    found: dict[str, Any] = {}
    if flow is not None and flow.flow_run is not None:
        found["flow_run_id"] = flow.flow_run.id
    if task is not None:
        found["task_run_id"] = task.task_run.id
        found.setdefault("flow_run_id", task.task_run.flow_run_id)
    return found
