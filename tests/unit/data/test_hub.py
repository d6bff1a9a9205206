"""Revisions and file lists of a hub: a busy hub is waited for, one that says no is not asked again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.tools.hub import Hub, hub_in_use, wait_until
from tests.tools.hub_answers import git_sha1
from tests.tools.hub_lines import ALERT, QUICK
from trainer_core.data.hub.api import list_files, pointers, resolve
from trainer_core.errors import Leaving, Refused
from trainer_core.line.files import read_jsonl

REPO = "owner/corpus"
LARGE = b"0123456789" * 200
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 146946961\n"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_in_use(monkeypatch, page_size=2) as running:
        yield running


def test_a_revision_stands_for_the_commit_it_points_at_now(hub: Hub) -> None:
    old = hub.commit(REPO, {"a.jsonl": b"1"}, age_hours=50)
    new = hub.commit(REPO, {"a.jsonl": b"2"}, age_hours=2)
    found = resolve(REPO, "main", patience=QUICK)
    assert (found.repo, found.revision, found.commit) == (REPO, "main", new)
    assert found.last_modified is not None
    age = datetime.now(UTC) - found.last_modified
    assert timedelta(hours=1.9) < age < timedelta(hours=2.1)
    assert resolve(REPO, old, patience=QUICK).commit == old
    hub.commit(REPO, {}, branch="refs/convert/x")
    assert resolve(REPO, "refs/convert/x", patience=QUICK).commit != new


def test_all_pages_are_listed_with_the_digests_by_which_the_hub_keeps_the_files(hub: Hub) -> None:
    files = {
        "z/large.parquet": LARGE,
        "a/b/small.jsonl": b'{"text": 1}\n',
        "a/_SUCCESS": b"",
        "é ü.txt": b"x",
    }
    commit = hub.commit(REPO, files)
    listed = list_files(REPO, commit, patience=QUICK)
    assert [file.path for file in listed] == sorted(files)
    assert {file.path: (file.size, file.digest) for file in listed} == {
        path: (len(data), hashlib.sha256(data).hexdigest() if len(data) > 1000 else git_sha1(data))
        for path, data in files.items()
    }
    assert len(hub.requests("GET .*/tree/")) == 4


def test_paths_that_lead_out_of_a_folder_are_refused(hub: Hub) -> None:
    commit = hub.commit(REPO, {"a/../../b.jsonl": b"x", "/etc/c.txt": b"x", "fine..jsonl": b"x"})
    with pytest.raises(Refused) as refused:
        list_files(REPO, commit, patience=QUICK)
    assert len(refused.value.problems) == 2


def test_a_busy_hub_is_waited_for_and_a_page_is_asked_for_again_alone(hub: Hub) -> None:
    commit = hub.commit(REPO, {f"{n}.jsonl": b"x" for n in range(5)})
    hub.plan("GET .*/tree/", "ok", "status:503", "status:429:retry-after=0.2", "reset", "cut:10", "ok")
    said: list[str] = []
    assert len(list_files(REPO, commit, patience=QUICK, say=said.append)) == 5
    requests = hub.requests("GET .*/tree/")
    assert len(requests) == 3 + 4
    assert requests[3].time - requests[2].time >= 0.2, "earlier than the hub asked for"
    assert [line for line in said if "503" in line] and [line for line in said if "429" in line]


def test_a_hub_that_names_a_date_or_a_used_up_limit_is_obeyed(hub: Hub) -> None:
    hub.commit(REPO, {"a": b""})
    later = (datetime.now(UTC) + timedelta(seconds=2)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    hub.plan("GET .*/revision/", f"status:503:retry-after={later}", 'status:429:ratelimit="api";r=0;t=1')
    resolve(REPO, "main", patience=QUICK)
    first, second, third = hub.requests("GET .*/revision/")
    assert second.time - first.time >= 0.9  # the date has whole seconds
    assert third.time - second.time >= 1.0


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("gated", r"terms must be accepted.*accept them at http://.*/datasets/owner/corpus.*HF_TOKEN"),
        ("status:401", r"wants a token that may read it \(401.*set HF_TOKEN"),
        ("status:403", r"forbidden \(403.*HF_TOKEN"),
        ("status:404", r"the hub answered 404"),
        ("status:400", r"the hub answered 400"),
    ],
)
def test_a_hub_that_says_no_is_not_asked_again(hub: Hub, action: str, words: str) -> None:
    hub.commit(REPO, {"a": b""})
    hub.plan("GET", f"{action}*")
    with pytest.raises(Refused, match=words):
        resolve(REPO, "main", patience=QUICK)
    assert len(hub.requests()) == 1


def test_names_that_do_not_exist_are_refused_by_name(hub: Hub) -> None:
    hub.commit(REPO, {"a": b""})
    with pytest.raises(Refused, match=r"owner/none: there is no such data set"):
        resolve("owner/none", "main", patience=QUICK)
    with pytest.raises(Refused, match=r"owner/corpus: there is no revision 'v9'"):
        resolve(REPO, "v9", patience=QUICK)


def test_the_token_is_read_when_it_is_needed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.commit(REPO, {"a": b""})
    hub.repos[REPO].token = "right"
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(Refused, match="terms must be accepted"):
        resolve(REPO, "main", patience=QUICK)
    monkeypatch.setenv("HF_TOKEN", "right")
    assert resolve(REPO, "main", patience=QUICK).commit == commit


def test_an_endpoint_that_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    with pytest.raises(Refused, match=r"HF_ENDPOINT is 'hub.example'; expected an address"):
        resolve(REPO, "main", patience=QUICK)


def test_offline_no_request_is_made(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.commit(REPO, {"a": b""})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Refused, match="HF_HUB_OFFLINE is set; unset it"):
        resolve(REPO, "main", patience=QUICK)
    with pytest.raises(Refused, match="HF_HUB_OFFLINE is set; unset it"):
        list_files(REPO, commit, patience=QUICK)
    assert not hub.requests()


def test_a_hub_that_is_away_is_waited_for_and_announced_once(hub: Hub, tmp_path: Path) -> None:
    commit = hub.commit(REPO, {"a": b""})
    hub.away()
    events = tmp_path / "events.jsonl"
    found: list[str] = []
    said: list[str] = []

    def ask() -> None:
        found.append(resolve(REPO, "main", events=events, patience=ALERT, say=said.append).commit)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum("waits for the hub" in line for line in said) == 2)
    assert not found
    hub.back()
    for thread in threads:
        thread.join()
    assert found == [commit, commit]
    waiting, back = read_jsonl(events)
    assert (waiting["kind"], back["kind"]) == ("hub_waiting", "hub_back")
    assert "owner/corpus: waits for the hub" in waiting["message"] and "refused" in waiting["reason"]
    assert back["seconds"] >= ALERT.watchdog_seconds


def test_an_answer_that_does_not_come_is_cut_off_and_asked_for_again(hub: Hub) -> None:
    commit = hub.commit(REPO, {"a": b""})
    hub.plan("GET .*/revision/", "stall:600")
    said: list[str] = []
    assert resolve(REPO, "main", patience=ALERT, say=said.append).commit == commit
    assert any("no byte for 0.5 s" in line for line in said)


def test_waiting_ends_when_the_process_is_asked_to(hub: Hub) -> None:
    hub.commit(REPO, {"a": b""})
    hub.plan("GET", "status:503:retry-after=600*")
    leaving = threading.Event()
    said: list[str] = []

    def say(message: str) -> None:
        said.append(message)
        leaving.set()

    with pytest.raises(Leaving, match="left unfinished on request"):
        resolve(REPO, "main", leaving=leaving, say=say, patience=QUICK)
    assert len(said) == 1


@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl", "p.jsonl.gz", "p.txt"])
def test_pointers_in_place_of_data_are_found_before_anything_is_read(hub: Hub, name: str) -> None:
    real = b'{"text": "%s"}\n' % (b"a document" * 12 + b"-")
    assert len(real) == len(POINTER)
    commit = hub.commit(REPO, {f"0-{name}": POINTER, "1-real.jsonl": real, "2-large.parquet": LARGE})
    files = list_files(REPO, commit, patience=QUICK)
    (problem,) = pointers(REPO, commit, files, patience=QUICK)
    assert problem.startswith(f"{REPO}: 0-{name} at {commit}: is a Git LFS pointer")
    assert not hub.requests("2-large")
