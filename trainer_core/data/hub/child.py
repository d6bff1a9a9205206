"""Process entry of a download: `python -m trainer_core.data.hub.child PARENT_PID`; requests in, answers out.

The only place that speaks to a hub. A request (one JSON line) is one try of one thing, answered by one JSON
line with its result or with the kind of its failure; when to try again is the parent's business. It is a
process of its own because a transfer that hangs in a library can only be ended by ending its process, and
because huggingface_hub reads its settings once. It leaves when its parent has, or has not asked for long.
"""

from __future__ import annotations

import importlib.util
import json
import re
import select
import signal
import sys
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from huggingface_hub import (
    get_hf_file_metadata,
    get_session,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from trainer_core.errors import disk_full
from trainer_core.line.parent import end_with_parent

IDLE_SECONDS = 120.0
_CONNECT_SECONDS = 10.0
_TIMES = (_CONNECT_SECONDS, None, None, None)
"""Connect, read, write, pool: silence in the middle of an answer is the parent's watchdog's business."""
_BUSY = (408, 425, 429)
_TRANSPORT_ERROR: type[BaseException] = HfHubHTTPError.__bases__[0]
"""The base of all errors of the HTTP library that this huggingface_hub uses."""
_RATE_LIMIT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")

Message = dict[str, Any]


class _OtherCommitError(Exception):
    """The hub answered for another commit than the one asked for."""


class _XetError(Exception):
    """The file can be had, but not by xet."""


def revision(request: Message) -> Message:
    """The commit that a branch, tag or commit stands for, and when it was made."""
    place = f"revision/{quote(request['revision'], safe='')}"
    answer = _get(request, f"{request['endpoint']}/api/datasets/{request['repo']}/{place}")
    return {"commit": answer.json()["sha"], "last_modified": answer.json().get("lastModified")}


def page(request: Message) -> Message:
    """One page of the list of all files of a commit, and where the next one is."""
    first = f"{request['endpoint']}/api/datasets/{request['repo']}/tree/{request['commit']}"
    answer = _get(request, request.get("url") or f"{first}?recursive=true&expand=false")
    files = [
        [entry["path"], entry["size"], entry["lfs"]["oid"] if entry.get("lfs") else entry["oid"]]
        for entry in answer.json()
        if entry["type"] == "file"
    ]
    return {"files": files, "next": answer.links.get("next", {}).get("url")}


def fetch(request: Message) -> Message:
    """One file of a commit: its bytes are in the answer's `file`, unchecked."""
    url = hf_hub_url(
        request["repo"],
        request["path"],
        repo_type="dataset",
        revision=request["commit"],
        endpoint=request["endpoint"],
    )
    times: Any = _TIMES
    head = get_hf_file_metadata(url, token=request["token"], timeout=times, endpoint=request["endpoint"])
    if head.commit_hash not in (None, request["commit"]):
        raise _OtherCommitError(f"commit {head.commit_hash} instead of {request['commit']}")
    if request["xet"] and head.xet_file_data is not None and importlib.util.find_spec("hf_xet"):
        return {"file": _by_xet(request)}
    _download(request, url, Path(request["part"]))
    return {"file": request["part"]}


def cached(request: Message) -> Message:
    """Where the hub's own cache has a file; asks nobody."""
    found = try_to_load_from_cache(
        request["repo"],
        request["path"],
        cache_dir=request["cache_dir"],
        revision=request["commit"],
        repo_type="dataset",
    )
    return {"file": found if isinstance(found, str) else None}


_KINDS: dict[type[BaseException], str] = {
    GatedRepoError: "gated",
    RevisionNotFoundError: "no_revision",
    RemoteEntryNotFoundError: "no_file",
    _OtherCommitError: "other_commit",
    _XetError: "no_xet",
}
OPERATIONS = {"revision": revision, "page": page, "fetch": fetch, "cached": cached}


def answer(request: Message) -> Message:
    """Do what is asked; every failure becomes an answer of its kind."""
    try:
        return {"kind": "done", **OPERATIONS[request["operation"]](request)}
    except Exception as error:
        return {"message": _message(error), **_failure(error)}


def _get(request: Message, url: str) -> Any:
    headers = build_hf_headers(token=request["token"])
    times: Any = _TIMES
    response = get_session().get(url, headers=headers, timeout=times)
    hf_raise_for_status(response)
    return response


def _download(request: Message, url: str, part: Path) -> None:
    """Append to the part what it lacks; whatever arrives stays, for the next try to go on from there."""
    start, size = part.stat().st_size, request["size"]
    if start > size:
        start = 0
    if start == size:
        return
    headers = {**build_hf_headers(token=request["token"]), "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    times: Any = _TIMES
    with (
        open(part, "r+b", buffering=0) as file,
        get_session().stream("GET", url, headers=headers, timeout=times) as response,
    ):
        if response.status_code == 416:
            file.truncate(0)
        hf_raise_for_status(response)
        if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            start = 0  # a hub may send all of a file of which a part was asked for
        file.truncate(start)
        file.seek(start)
        for chunk in response.iter_bytes():
            _write(file, chunk)
            if file.tell() > size:
                break


def _by_xet(request: Message) -> str:
    """Where huggingface_hub put the file below the request's `stage`."""
    try:
        return hf_hub_download(
            request["repo"],
            request["path"],
            repo_type="dataset",
            revision=request["commit"],
            local_dir=request["stage"],
            token=request["token"],
            endpoint=request["endpoint"],
        )
    except Exception as error:
        if isinstance(error, OSError) and disk_full(error):
            raise
        raise _XetError(_message(error)) from error


def _write(file: Any, data: bytes) -> None:
    """All of the data: an unbuffered file may take less at once."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _failure(error: BaseException) -> Message:
    """The kind of a failure, and how long the hub asks to wait."""
    if isinstance(error, LocalEntryNotFoundError):  # how hf_hub_download says that it could not ask
        return _failure(error.__cause__) if error.__cause__ is not None else {"kind": "away"}
    for cause, kind in _KINDS.items():
        if isinstance(error, cause):
            return {"kind": kind}
    if isinstance(error, HfHubHTTPError):
        return _answered(error)
    if isinstance(error, OSError) and disk_full(error):
        return {"kind": "full"}
    if isinstance(error, (_TRANSPORT_ERROR, ConnectionError)):
        return {"kind": "away"}
    if isinstance(error, OSError):
        return {"kind": "away" if error.errno is None else "local"}
    return {"kind": "failed"}


def _answered(error: HfHubHTTPError) -> Message:
    status = error.response.status_code
    if status in _BUSY or status >= 500:
        return {"kind": "busy", "retry_after": _retry_after(error.response.headers)}
    if isinstance(error, RepositoryNotFoundError):
        return {"kind": "no_repo"}
    return {"kind": {401: "token", 403: "forbidden", 416: "away"}.get(status, "http")}


def _retry_after(headers: Any) -> float | None:
    """Seconds that the hub asks to wait: a number, a date, or the reset of an exhausted rate limit."""
    asked = [float(found[1]) for found in _RATE_LIMIT.finditer(headers.get("RateLimit", ""))]
    if value := headers.get("Retry-After"):
        try:
            asked.append(float(value))
        except ValueError:
            with suppress(ValueError):  # not a time: as if it were not there
                asked.append(parsedate_to_datetime(value).timestamp() - time.time())
    return max(asked, default=None)


def _message(error: BaseException) -> str:
    """One line for people."""
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return _message(error.__cause__)
    if isinstance(error, HfHubHTTPError):
        said = error.server_message or error.response.reason_phrase
        return f"{error.response.status_code} {' '.join(str(said).split())}"
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main() -> None:
    """Answer until the parent is gone or has not asked for a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    end_with_parent(int(sys.argv[1]))
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"kind": "ready"}), file=answers, flush=True)
    while select.select([sys.stdin], [], [], IDLE_SECONDS)[0] and (line := sys.stdin.readline()):
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
