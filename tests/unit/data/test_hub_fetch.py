"""Files of a hub that misbehaves: the pinned bytes arrive in the end, or the file is refused with why."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.tools.hub import Hub, running_hub, wait_until
from tests.tools.hub_lines import ALERT, QUICK, pinned_files
from trainer_core.data import hub_process
from trainer_core.data.hub import fetch_to
from trainer_core.data.hub_transfer import part_of
from trainer_core.data.hub_waiting import Patience
from trainer_core.data.sources import SourceFile
from trainer_core.errors import DiskFull, Leaving, Refused
from trainer_core.line.files import read_jsonl

REPO = "owner/corpus"
LARGE = os.urandom(300_000)
SMALL = b'{"text": "small"}\n'
FILES = {"data/large.parquet": LARGE, "data/small.jsonl": SMALL, "data/empty.txt": b""}


class Case:
    """A hub with one commit, and a folder to download to."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub = hub
        self.commit = hub.commit(REPO, FILES)
        self.files = pinned_files(REPO, self.commit)
        self.folder = folder
        self.said: list[str] = []
        hub.log.clear()

    def target(self, path: str) -> Path:
        return self.folder / path

    def fetch(self, path: str = "data/large.parquet", patience: Patience = QUICK, **more: object) -> bytes:
        target = self.target(path)
        options: dict[str, object] = {"patience": patience, "say": self.said.append, **more}
        fetch_to(REPO, self.commit, self.files[path], target, **options)  # type: ignore[arg-type]
        return target.read_bytes()

    def gets(self) -> list[str | None]:
        """The ranges of the file requests."""
        return [request.span for request in self.hub.requests("GET")]

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob(".*"))


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    with running_hub(redirect=getattr(request, "param", False)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_HOME"):
            monkeypatch.delenv(name, raising=False)
        yield Case(hub, tmp_path / "incoming")


both_ways = pytest.mark.parametrize("case", [False, True], indirect=True, ids=["direct", "redirected"])


@both_ways
@pytest.mark.parametrize("path", sorted(FILES))
def test_a_file_arrives_once(case: Case, path: str) -> None:
    assert case.fetch(path) == FILES[path]
    assert case.leftovers() == [] and case.gets()[1:] == [None] * (
        case.hub.redirect and len(FILES[path]) > 1000
    )
    case.hub.log.clear()
    assert case.fetch(path) == FILES[path]
    assert not case.hub.requests(), "a finished file is not asked for again"


@both_ways
def test_the_token_goes_to_the_hub_and_nowhere_else(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "mine")
    case.hub.repos[REPO].token = "mine"
    assert case.fetch() == LARGE
    tokens = {(request.host, request.token) for request in case.hub.requests()}
    assert ("127.0.0.1", "Bearer mine") in tokens
    assert tokens - {("127.0.0.1", "Bearer mine")} == ({("localhost", None)} if case.hub.redirect else set())


PASSING = {
    "429 on the head": ("HEAD", "status:429:retry-after=0.1"),
    "429 on the file": ("GET", "status:429:retry-after=0.1"),
    "503 on the head": ("HEAD", "status:503", "status:503", "status:503"),
    "503 on the file": ("GET", "status:503", "status:502", "status:500"),
    "reset on the head": ("HEAD", "reset", "reset"),
    "reset on the file": ("GET", "reset", "reset"),
    "cut at once": ("GET", "cut:0", "cut:0"),
    "cut again and again": ("GET", "cut:100000", "cut:50000", "cut:1"),
    "other bytes once": ("GET", "corrupt"),
    "other bytes twice": ("GET", "corrupt", "corrupt"),
    "other bytes after a cut": ("GET", "cut:1000", "corrupt"),
    "a cut after other bytes": ("GET", "corrupt", "cut:1000"),
}


@both_ways
@pytest.mark.parametrize("name", sorted(PASSING))
def test_what_passes_is_waited_for(case: Case, name: str) -> None:
    method, *actions = PASSING[name]
    place = "(resolve|network)" if case.hub.redirect else "resolve"
    if case.hub.redirect and method == "GET":
        place = "network"
    case.hub.plan(f"{method} .*/?{place}/.*large", *actions)
    assert case.fetch() == LARGE
    planned = [request.action for request in case.hub.requests(method) if request.action != "ok"]
    assert planned == actions, "every fault was met"
    assert case.leftovers() == [] and len(case.said) == len(actions)


@both_ways
def test_a_cut_file_goes_on_where_it_was_cut(case: Case) -> None:
    case.hub.plan("GET .*large", *(["ok"] if case.hub.redirect else []), "cut:100000")
    assert case.fetch() == LARGE
    assert case.gets()[-1] == "bytes=100000-"


def test_a_wait_is_as_long_as_the_hub_asks_for(case: Case) -> None:
    case.hub.plan("GET .*resolve", "status:429:retry-after=0.3")
    assert case.fetch() == LARGE
    first, second, *_ = case.hub.requests("GET .*resolve")
    assert second.time - first.time >= 0.3


def test_other_files_go_on_while_one_waits(case: Case) -> None:
    case.hub.plan(".*large", "status:429:retry-after=600*")
    leaving = threading.Event()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            case.fetch(leaving=leaving)
        except Leaving as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: case.said)
    assert case.fetch("data/small.jsonl") == SMALL
    leaving.set()
    thread.join()
    assert len(ended) == 1 and not case.target("data/large.parquet").exists()


def test_a_file_that_never_has_the_pinned_bytes_is_refused(case: Case) -> None:
    case.hub.plan("GET .*large", "corrupt*")
    with pytest.raises(Refused, match=r"other bytes than those pinned at commit \w+, 3 times: sha256 is"):
        case.fetch()
    assert not case.target("data/large.parquet").exists() and case.leftovers() == []
    case.hub.plan("GET .*small", "corrupt*")
    with pytest.raises(Refused, match="3 times: git blob sha1 is"):
        case.fetch("data/small.jsonl")


def test_a_file_of_another_size_is_not_taken(case: Case) -> None:
    for other in (LARGE[:-1], LARGE + b"x"):
        case.hub.repos[REPO].commits[case.commit]["data/large.parquet"] = other
        with pytest.raises(Refused, match=r"bytes|sha256"):
            case.fetch()
        assert not case.target("data/large.parquet").exists()


def test_a_stalled_file_is_cut_off_and_gone_on_with_without_xet(case: Case) -> None:
    case.hub.plan("GET .*large", *(["ok"] if case.hub.redirect else []), "stall-after:100000:600")
    assert case.fetch(patience=ALERT) == LARGE
    assert case.gets()[-1] == "bytes=100000-"
    assert any("no byte for 0.5 s" in line for line in case.said)


def test_a_stall_before_the_first_byte_is_cut_off_too(case: Case) -> None:
    case.hub.plan("(HEAD|GET) .*large", "stall:600", "ok", "stall:600")
    assert case.fetch(patience=ALERT) == LARGE
    assert sum("no byte for 0.5 s; tried again" in line for line in case.said) >= 2


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("gated", "terms must be accepted"),
        ("status:401", "no such data set|wants a token"),
        ("status:403", "forbidden"),
        ("status:404", "answered 404"),
        ("status:410", "answered 410"),
    ],
)
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_no_is_final_and_says_why(case: Case, method: str, action: str, words: str) -> None:
    case.hub.plan(f"{method} .*large", f"{action}*")
    with pytest.raises(Refused, match=rf"owner/corpus: data/large.parquet: .*({words})"):
        case.fetch()
    assert len([r for r in case.hub.requests() if r.action != "ok"]) == 1
    assert case.leftovers() == []


def test_a_renamed_file_is_refused_by_name(case: Case) -> None:
    missing = SourceFile(path="data/renamed.parquet", size=10, digest="0" * 64, stratum="all")
    with pytest.raises(Refused, match=r"data/renamed.parquet: is not in the pinned commit [0-9a-f]{40}"):
        fetch_to(REPO, case.commit, missing, case.target("r"), patience=QUICK)


def test_g05_a_commit_that_is_gone_is_never_replaced_by_another(case: Case) -> None:
    new = case.hub.commit(REPO, FILES)
    case.hub.forget(REPO, case.commit)
    with pytest.raises(Refused, match=f"pinned commit {case.commit} is gone.*no other revision is used"):
        case.fetch()
    assert not case.target("data/large.parquet").exists()
    assert not [r for r in case.hub.requests() if new in r.key or "/main" in r.key]


def test_a_hub_that_answers_for_another_commit_is_refused(case: Case) -> None:
    new = case.hub.commit(REPO, FILES)
    case.hub.repos[REPO].branches[case.commit] = new
    with pytest.raises(Refused, match=rf"pinned commit {case.commit} is gone.*commit {new} instead"):
        case.fetch()


@both_ways
def test_a_hub_that_goes_away_in_the_middle_is_announced_and_gone_on_with(case: Case, tmp_path: Path) -> None:
    case.hub.plan("GET .*large", *(["ok"] if case.hub.redirect else []), "stall-after:100000:600")
    events = tmp_path / "events.jsonl"
    done: list[bytes] = []
    # Long enough that the file is not cut off by the watchdog before the hub goes away.
    patience = Patience(first_seconds=0.01, longest_seconds=0.05, watchdog_seconds=2.0, poll_seconds=0.01)
    thread = threading.Thread(target=lambda: done.append(case.fetch(patience=patience, events=events)))
    thread.start()
    wait_until(lambda: _size(part_of(case.target("data/large.parquet"))) == 100_000)
    case.hub.away()
    wait_until(lambda: read_jsonl(events))
    assert not done
    case.hub.back()
    thread.join()
    assert done == [LARGE] and case.gets()[-1] == "bytes=100000-"
    assert [row["kind"] for row in read_jsonl(events)] == ["hub_waiting", "hub_back"]


def test_a_killed_download_process_costs_nothing_that_arrived(case: Case) -> None:
    case.hub.plan("GET .*large", *(["ok"] if case.hub.redirect else []), "stall-after:200000:600")
    hub_process.end_idle()
    done: list[bytes] = []
    thread = threading.Thread(target=lambda: done.append(case.fetch()))
    thread.start()
    wait_until(lambda: _size(part_of(case.target("data/large.parquet"))) == 200_000)
    for pid in _children():
        os.kill(pid, signal.SIGKILL)
    thread.join()
    assert done == [LARGE] and case.gets()[-1] == "bytes=200000-"


def test_leaving_keeps_what_arrived_and_the_next_start_goes_on(case: Case) -> None:
    case.hub.plan("GET .*large", *(["ok"] if case.hub.redirect else []), "stall-after:200000:600")
    leaving = threading.Event()
    ended: list[BaseException] = []

    def fetch() -> None:
        try:
            case.fetch(leaving=leaving)
        except Leaving as error:
            ended.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    part = part_of(case.target("data/large.parquet"))
    wait_until(lambda: _size(part) == 200_000)
    leaving.set()
    thread.join()
    assert ended and _size(part) == 200_000 and not case.target("data/large.parquet").exists()
    assert case.fetch() == LARGE
    assert case.gets()[-1] == "bytes=200000-" and case.leftovers() == []


@pytest.mark.parametrize("left", [b"x" * 1000, LARGE[:1000], LARGE, LARGE[:-1] + b"?", LARGE + b"more"])
def test_whatever_a_part_holds_the_pinned_bytes_come_out(case: Case, left: bytes) -> None:
    part = part_of(case.target("data/large.parquet"))
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    assert case.fetch() == LARGE
    assert case.leftovers() == []


def test_an_old_part_of_other_bytes_is_not_held_against_the_hub(case: Case) -> None:
    part = part_of(case.target("data/large.parquet"))
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    case.hub.plan("GET .*large", "ok", "corrupt", "corrupt")
    assert case.fetch() == LARGE


def test_several_that_want_one_file_download_it_once(case: Case) -> None:
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(case.fetch())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [LARGE] * 4
    assert len(case.hub.requests("HEAD")) == 1 and case.leftovers() == []


def test_a_damaged_file_is_found_and_fetched_again(case: Case) -> None:
    case.fetch()
    target = case.target("data/large.parquet")
    for damage in (LARGE[:-1] + b"?", LARGE[:-1], LARGE + b"x", b""):
        target.write_bytes(damage)
        assert case.fetch() == LARGE
    assert sum("fetched again" in line for line in case.said) == 4


def test_a_file_that_cannot_be_read_is_fetched_anew_on_request(case: Case) -> None:
    case.fetch()
    case.hub.log.clear()
    assert case.fetch(again=True) == LARGE
    assert case.gets().count(None) == len(case.gets()) > 0


def test_a_file_that_does_not_fit_is_not_begun(case: Case) -> None:
    vast = SourceFile(path="data/large.parquet", size=1 << 60, digest="0" * 64, stratum="all")
    with pytest.raises(DiskFull, match=r"large.parquet: no space left \(\d{19} bytes are missing"):
        fetch_to(REPO, case.commit, vast, case.target("data/large.parquet"), patience=QUICK)
    assert not case.hub.requests() and case.leftovers() == []


def test_offline_a_verified_copy_of_the_cache_is_used(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    _fill_cache(case, cache, "data/large.parquet", "data/small.jsonl")
    case.hub.log.clear()
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert case.fetch() == LARGE
    assert case.fetch() == LARGE
    with pytest.raises(Refused, match=r"data/empty.txt at \w{40}: is not in the hub's cache, and HF_HUB_OFF"):
        case.fetch("data/empty.txt")
    link = next(cache.rglob("snapshots/*/data/small.jsonl"))
    link.write_bytes(SMALL.replace(b"small", b"other"))  # through the link, into the blob
    with pytest.raises(Refused, match=r"git blob sha1 is .* was pinned, and HF_HUB_OFFLINE is set"):
        case.fetch("data/small.jsonl")
    assert not case.hub.requests() and case.leftovers() == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert case.fetch("data/small.jsonl") == SMALL


def _fill_cache(case: Case, cache: Path, *paths: str) -> None:
    from huggingface_hub import hf_hub_download

    for path in paths:
        hf_hub_download(
            REPO, path, repo_type="dataset", revision=case.commit, endpoint=case.hub.url, cache_dir=cache
        )


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        assert error.errno == errno.ENOENT
        return -1


def _children() -> list[int]:
    """The download processes of this process."""
    found = psutil.Process().children()
    return [process.pid for process in found if "trainer_core.data.hub_child" in process.cmdline()]
