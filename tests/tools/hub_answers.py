"""What the hub of our own answers: its routes, and the faults of its plans (see hub.py)."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlencode, urlparse

if TYPE_CHECKING:
    from tests.tools.hub import Hub, Repo

_LARGE = (".parquet", ".zst", ".gz")
_LARGE_BYTES = 1000
_API = re.compile(r"/api/datasets/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.+))?)?")
_RESOLVE = re.compile(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_XET = re.compile(r"/xet/([^/]+/[^/]+)")
_NETWORK = re.compile(r"/network/([^/]+/[^/]+)/([^/]+)/(.+)")


def git_sha1(data: bytes) -> str:
    """Git's name of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_large(path: str, data: bytes) -> bool:
    """Whether the hub keeps a file by its sha256 (LFS)."""
    return len(data) > _LARGE_BYTES or path.endswith(_LARGE)


def entry_of(path: str, data: bytes) -> dict[str, Any]:
    """A file as listings have it."""
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
    if is_large(path, data):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


class Answers(BaseHTTPRequestHandler):
    """One connection."""

    hub: ClassVar[Hub]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _action = "ok"

    def setup(self) -> None:
        super().setup()
        with self.hub.lock:
            self.hub.open_sockets.add(self.connection)

    def finish(self) -> None:
        with self.hub.lock:
            self.hub.open_sockets.discard(self.connection)
        super().finish()

    def log_message(self, *args: object) -> None:
        """Nothing on the terminal."""

    def do_GET(self) -> None:
        from tests.tools.hub import Request

        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        path = urlparse(self.path).path
        key = f"{self.command} {unquote(path)}"
        self._action = self.hub.action(key)
        self.hub.note(
            Request(
                key=key,
                span=self.headers.get("Range"),
                token=self.headers.get("Authorization"),
                host=(self.headers.get("Host") or "").partition(":")[0],
                action=self._action,
                time=time.monotonic(),
            )
        )
        if not self._fault():
            self._answer(path, body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def _fault(self) -> bool:
        """Whether the request was dealt with by a fault."""
        name, _, rest = self._action.partition(":")
        match name:
            case "stall":
                self.hub.stopping.wait(float(rest))
            case "reset":
                self._reset()
                return True
            case "gated":
                self._refuse_terms()
                return True
            case "status":
                code, _, header = rest.partition(":")
                headers = {}
                if header:
                    key, _, value = header.partition("=")
                    headers[key.title()] = value
                self._send(int(code), b'{"error":"as planned"}', headers)
                return True
        return False

    def _reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()

    def _refuse_terms(self) -> None:
        message = "Access to this dataset is restricted"
        self._send(401, b"gated", {"X-Error-Code": "GatedRepo", "X-Error-Message": message})

    def _answer(self, path: str, body: bytes) -> None:
        routes = (
            (_API, self._api),
            (_RESOLVE, self._resolve),
            (_NETWORK, self._network),
            (_XET, self._xet_token),
        )
        for route, answer in routes:
            if found := route.fullmatch(path):
                repo = self.hub.repos.get(found[1])
                if repo is None:
                    self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
                elif repo.token and route is not _NETWORK and not self._has(repo.token):
                    self._refuse_terms()
                else:
                    names = [part and unquote(part) for part in found.groups()]
                    answer(repo, *names, **({"body": body} if route is _API else {}))
                return
        self._send(404, b"{}")

    def _has(self, token: str) -> bool:
        return self.headers.get("Authorization") == f"Bearer {token}"

    def _tree(self, repo: Repo, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit of a revision and its files; an answer is sent when there is none."""
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
            return None
        return commit, repo.commits[commit]

    def _api(
        self, repo: Repo, name: str, what: str | None, revision: str | None, below: str | None, *, body: bytes
    ) -> None:
        found = self._tree(repo, revision or "main")
        if found is None:
            return
        commit, files = found
        if what == "tree":
            self._send_tree(files, below)
        elif what == "paths-info":
            wanted = parse_qs(body.decode()).get("paths", [])
            self._send_json([entry_of(path, files[path]) for path in wanted if path in files])
        else:
            when = repo.times[commit].strftime("%Y-%m-%dT%H:%M:%S.000Z")
            siblings = [{"rfilename": path} for path in sorted(files)]
            self._send_json(
                {"id": name, "sha": commit, "lastModified": when, "private": False, "gated": False,
                 "disabled": False, "tags": [], "downloads": 0, "likes": 0, "siblings": siblings}
            )  # fmt: skip

    def _send_tree(self, files: dict[str, bytes], below: str | None) -> None:
        query = {key: values[0] for key, values in parse_qs(urlparse(self.path).query).items()}
        prefix = f"{below.rstrip('/')}/" if below else ""
        entries: dict[str, dict[str, Any]] = {}
        for path in sorted(files):
            if not path.startswith(prefix):
                continue
            parts = path.split("/")
            for depth in range(prefix.count("/") + 1, len(parts)):
                folder = "/".join(parts[:depth])
                entries[folder] = {"type": "directory", "path": folder, "size": 0, "oid": "0" * 40}
            entries[path] = entry_of(path, files[path])
        listed = list(entries.values())
        if query.get("recursive", "false").lower() != "true":
            listed = [entry for entry in listed if "/" not in entry["path"][len(prefix) :]]
        start = int(query.get("cursor", "0"))
        end = start + self.hub.page_size
        headers = {}
        if end < len(listed):
            after = urlencode({**query, "cursor": end})
            headers["Link"] = f'<{self.hub.url}{quote(urlparse(self.path).path)}?{after}>; rel="next"'
        self._send_json(listed[start:end], headers)

    def _resolve(self, repo: Repo, name: str, revision: str, path: str) -> None:
        found = self._tree(repo, revision)
        if found is None:
            return
        commit, files = found
        if path not in files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        data = files[path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(data)}"', "Accept-Ranges": "bytes"}
        if is_large(path, data):
            headers |= {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data))}
            headers["X-Linked-Etag"] = headers["ETag"]
            if self.hub.xet:
                headers |= {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": f"{self.hub.url}/xet/{name}"}
            if self.hub.redirect:
                place = f"{self.hub.network_url}/network/{name}/{commit}/{quote(path)}"
                self._send(302, b"", headers | {"Location": place})
                return
        self._send_file(data, headers)

    def _network(self, repo: Repo, name: str, commit: str, path: str) -> None:
        data = repo.commits[commit][path]
        self._send_file(data, {"ETag": '"opaque"', "Accept-Ranges": "bytes"})

    def _xet_token(self, repo: Repo, name: str) -> None:
        if self.hub.xet == "no token":
            self._send(404, b"{}")
            return
        storage = {"X-Xet-Cas-Url": "http://127.0.0.1:1", "X-Xet-Access-Token": "t"}
        self._send(200, b"{}", {**storage, "X-Xet-Token-Expiration": str(int(time.time()) + 3600)})

    def _send_file(self, data: bytes, headers: dict[str, str]) -> None:
        if self._action == "corrupt" and data:
            data = data[:-1] + bytes([data[-1] ^ 0xFF])
        code, body = 200, data
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if span and self.command == "GET":
            first, last = int(span[1]), min(int(span[2] or len(data) - 1), len(data) - 1)
            if first >= len(data):
                self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            headers = headers | {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
            code, body = 206, data[first : last + 1]
        self._send(code, body, headers)

    def _send_json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        name, _, rest = self._action.partition(":")
        if self.command == "HEAD":
            return
        if name not in ("cut", "stall-after"):
            self.wfile.write(body)
            return
        sent, _, seconds = rest.partition(":")
        self.wfile.write(body[: int(sent)])
        self.wfile.flush()
        if seconds:
            self.hub.stopping.wait(float(seconds))
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
