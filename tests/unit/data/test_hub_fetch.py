"""Files of a hub that misbehaves: the pinned bytes arrive in the end, or the file is refused with why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.hub import hub_in_use
from tests.tools.hub_case import FILES, LARGE, REPO, SMALL, HubCase, both_ways
from tests.tools.hub_lines import ALERT, QUICK
from trainer_core.data.hub.api import fetch_to
from trainer_core.data.hub.transfer import part_of
from trainer_core.data.sources import SourceFile
from trainer_core.errors import Refused


@pytest.fixture
def case(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubCase]:
    with hub_in_use(monkeypatch, redirect=getattr(request, "param", False)) as hub:
        yield HubCase(hub, tmp_path / "incoming")


@both_ways
@pytest.mark.parametrize("path", sorted(FILES))
def test_a_file_arrives_once(case: HubCase, path: str) -> None:
    assert case.fetch(path) == FILES[path]
    assert case.leftovers() == [] and case.gets()[1:] == [None] * (
        case.hub.redirect and len(FILES[path]) > 1000
    )
    case.hub.log.clear()
    assert case.fetch(path) == FILES[path]
    assert not case.hub.requests(), "a finished file is not asked for again"


@both_ways
def test_the_token_goes_to_the_hub_and_nowhere_else(case: HubCase, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_passes_is_waited_for(case: HubCase, name: str) -> None:
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
def test_a_cut_file_goes_on_where_it_was_cut(case: HubCase) -> None:
    case.hub.plan("GET .*large", *(["ok"] if case.hub.redirect else []), "cut:100000")
    assert case.fetch() == LARGE
    assert case.gets()[-1] == "bytes=100000-"


def test_a_wait_is_as_long_as_the_hub_asks_for(case: HubCase) -> None:
    case.hub.plan("GET .*resolve", "status:429:retry-after=0.3")
    assert case.fetch() == LARGE
    first, second, *_ = case.hub.requests("GET .*resolve")
    assert second.time - first.time >= 0.3


def test_a_file_that_never_has_the_pinned_bytes_is_refused(case: HubCase) -> None:
    case.hub.plan("GET .*large", "corrupt*")
    with pytest.raises(Refused, match=r"other bytes than those pinned at commit \w+, 3 times: sha256 is"):
        case.fetch()
    assert not case.target("data/large.parquet").exists() and case.leftovers() == []
    case.hub.plan("GET .*small", "corrupt*")
    with pytest.raises(Refused, match="3 times: git blob sha1 is"):
        case.fetch("data/small.jsonl")


def test_a_file_of_another_size_is_not_taken(case: HubCase) -> None:
    for other in (LARGE[:-1], LARGE + b"x"):
        case.hub.repos[REPO].commits[case.commit]["data/large.parquet"] = other
        with pytest.raises(Refused, match=r"bytes|sha256"):
            case.fetch()
        assert not case.target("data/large.parquet").exists()


@pytest.mark.parametrize("trouble", ["no token", "no storage"])
def test_a_file_that_xet_does_not_bring_comes_without_it(case: HubCase, trouble: str) -> None:
    case.hub.xet = trouble
    assert case.fetch(patience=ALERT) == LARGE
    assert case.hub.requests("GET /xet/"), "xet was tried"
    assert case.gets()[-1] is None and case.leftovers() == []


def test_xet_is_left_alone_where_the_user_disabled_it(case: HubCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case.hub.xet = "no storage"
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    assert case.fetch() == LARGE
    assert not case.hub.requests("GET /xet/")


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
def test_a_no_is_final_and_says_why(case: HubCase, method: str, action: str, words: str) -> None:
    case.hub.plan(f"{method} .*large", f"{action}*")
    with pytest.raises(Refused, match=rf"owner/corpus: data/large.parquet: .*({words})"):
        case.fetch()
    assert len([r for r in case.hub.requests() if r.action != "ok"]) == 1
    assert case.leftovers() == []


def test_a_renamed_file_is_refused_by_name(case: HubCase) -> None:
    missing = SourceFile(path="data/renamed.parquet", size=10, digest="0" * 64, stratum="all")
    with pytest.raises(Refused, match=r"data/renamed.parquet: is not in the pinned commit [0-9a-f]{40}"):
        fetch_to(REPO, case.commit, missing, case.target("r"), patience=QUICK)


def test_g05_a_commit_that_is_gone_is_never_replaced_by_another(case: HubCase) -> None:
    new = case.hub.commit(REPO, FILES)
    case.hub.forget(REPO, case.commit)
    with pytest.raises(Refused, match=f"pinned commit {case.commit} is gone.*no other revision is used"):
        case.fetch()
    assert not case.target("data/large.parquet").exists()
    assert not [r for r in case.hub.requests() if new in r.key or "/main" in r.key]


def test_a_hub_that_answers_for_another_commit_is_refused(case: HubCase) -> None:
    new = case.hub.commit(REPO, FILES)
    case.hub.repos[REPO].branches[case.commit] = new
    with pytest.raises(Refused, match=rf"pinned commit {case.commit} is gone.*commit {new} instead"):
        case.fetch()


@pytest.mark.parametrize("left", [b"x" * 1000, LARGE[:1000], LARGE, LARGE[:-1] + b"?", LARGE + b"more"])
def test_whatever_a_part_holds_the_pinned_bytes_come_out(case: HubCase, left: bytes) -> None:
    part = part_of(case.target("data/large.parquet"))
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    assert case.fetch() == LARGE
    assert case.leftovers() == []


def test_an_old_part_of_other_bytes_is_not_held_against_the_hub(case: HubCase) -> None:
    part = part_of(case.target("data/large.parquet"))
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    case.hub.plan("GET .*large", "ok", "corrupt", "corrupt")
    assert case.fetch() == LARGE


def test_a_damaged_file_is_found_and_fetched_again(case: HubCase) -> None:
    case.fetch()
    target = case.target("data/large.parquet")
    for damage in (LARGE[:-1] + b"?", LARGE[:-1], LARGE + b"x", b""):
        target.write_bytes(damage)
        assert case.fetch() == LARGE
    assert sum("fetched again" in line for line in case.said) == 4


def test_a_file_that_cannot_be_read_is_fetched_anew_on_request(case: HubCase) -> None:
    case.fetch()
    case.hub.log.clear()
    assert case.fetch(again=True) == LARGE
    assert case.gets().count(None) == len(case.gets()) > 0


def test_offline_a_verified_copy_of_the_cache_is_used(
    case: HubCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def _fill_cache(case: HubCase, cache: Path, *paths: str) -> None:
    from huggingface_hub import hf_hub_download

    for path in paths:
        hf_hub_download(
            REPO, path, repo_type="dataset", revision=case.commit, endpoint=case.hub.url, cache_dir=cache
        )
