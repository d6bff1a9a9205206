"""Requests to a hub that are tried until they are answered, and the words for those that are refused.

What can pass (busy, away, stalled) is waited for; everything else is Refused with its way out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_core.data.hub.process import ask
from trainer_core.data.hub.waiting import Patience, Wait
from trainer_core.errors import Refused

_ENDPOINT = "https://huggingface.co"
_TRUE = ("1", "ON", "YES", "TRUE")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_UNEXPECTED_TRIES = 3
PASSING = ("busy", "away", "stalled", "died", "no_xet")
"""Kinds of failures that may be over later."""


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").upper() in _TRUE


def offline() -> bool:
    """Whether the user wants no request to be made."""
    return any(_is_set(name) for name in _OFFLINE)


def endpoint() -> str:
    """Where the hub is. Raises Refused when that is no address."""
    found = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    if not found.startswith(("http://", "https://")):
        raise Refused(f"HF_ENDPOINT is {found!r}; expected an address such as {_ENDPOINT}")
    return found


def cache_folder() -> str | None:
    """The hub's own cache; None for its default place."""
    if named := os.environ.get("HF_HUB_CACHE"):
        return named
    home = os.environ.get("HF_HOME")
    return str(Path(home) / "hub") if home else None


class Hub:
    """One repository as one transfer asks for it."""

    def __init__(self, repo: str, wait: Wait, patience: Patience) -> None:
        self.repo = repo
        self.wait = wait
        self.xet = not _is_set("HF_HUB_DISABLE_XET")
        """Whether the next try may use xet; a transfer that failed in a strange way goes on without it."""
        self._patience = patience
        self._unexpected = 0

    def try_once(self, request: dict[str, Any], *, watched: Sequence[Path] = ()) -> dict[str, Any]:
        """One try; the answer says what became of it. Raises Refused when no request may be made."""
        if offline():
            raise Refused(
                f"{self.repo}: the hub is not asked while HF_HUB_OFFLINE is set; unset it and start again"
            )
        full = {
            **request,
            "repo": self.repo,
            "endpoint": endpoint(),
            "token": os.environ.get("HF_TOKEN") or None,
            "xet": self.xet,
        }
        self.wait.check_leaving()
        check = self.wait.check_leaving
        answer = ask(full, xet=self.xet, watched=watched, patience=self._patience, check=check)
        if answer["kind"] in ("stalled", "died", "failed", "no_xet"):
            self.xet = False
        return answer

    def ask_until_done(
        self, request: dict[str, Any], *, revision: str, pinned: bool = False
    ) -> dict[str, Any]:
        """Ask until there is an answer. Raises Refused when waiting cannot help."""
        while True:
            answer = self.try_once(request)
            if answer["kind"] == "done":
                self.wait.over()
                return answer
            self.wait_after(answer, revision=revision, pinned=pinned)

    def wait_after(
        self,
        answer: dict[str, Any],
        *,
        revision: str,
        pinned: bool,
        path: str | None = None,
        progress: bool = False,
    ) -> None:
        """Wait after a failure that can pass; raises Refused for any other."""
        if answer["kind"] == "failed":
            self._unexpected += 1
            if self._unexpected >= _UNEXPECTED_TRIES:
                raise RuntimeError(f"{self.repo}: asking the hub failed: {answer['message']}")
        elif answer["kind"] not in PASSING:
            what = f"{self.repo}: {path}" if path else self.repo
            raise Refused(f"{what}: {self._refusal(answer, revision, pinned)}")
        self.wait.after(answer["message"], retry_after=answer.get("retry_after"), progress=progress)

    def _refusal(self, answer: dict[str, Any], revision: str, pinned: bool) -> str:
        page = f"{endpoint()}/datasets/{self.repo}"
        message = answer["message"]
        match answer["kind"]:
            case "gated":
                return (
                    f"its terms must be accepted first ({message}): accept them at {page}, "
                    "and set HF_TOKEN to a token of that account"
                )
            case "token":
                return (
                    f"the hub wants a token that may read it ({message}); check the name, set HF_TOKEN, "
                    "or unset a token that is none"
                )
            case "forbidden":
                return f"access is forbidden ({message}); set HF_TOKEN to a token that may read {page}"
            case "no_repo":
                return (
                    f"there is no such data set at {endpoint()}, or it is private ({message}); "
                    "check the name, or set HF_TOKEN to a token that may read it"
                )
            case "no_revision" | "other_commit" if pinned:
                return (
                    f"the pinned commit {revision} is gone from the hub ({message}); no other revision is "
                    "used in its place. Cycles that are made stay valid; ask the owner to bring the commit "
                    "back, or make a new data line from a revision that exists"
                )
            case "no_revision":
                return f"there is no revision {revision!r} ({message}); name one that {page} lists"
            case "no_file":
                return (
                    f"is not in the pinned commit {revision} ({message}); no other file is used in its place"
                )
            case "local":
                return f"cannot be written here ({message})"
        return f"the hub answered {message}"
