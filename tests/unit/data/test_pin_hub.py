"""`data init` from a hub: the commit and its files pinned, one download at a time, and what it refuses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.hub import Hub, hub_in_use
from tests.unit.data.inputs import EOS, MARKERS, byte_tokenizer, dump, json_lines, write_recipe
from trainer_core.data.hub.waiting import Patience
from trainer_core.data.making.init_report import InitReport
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.sources import TextRule, load_data_line
from trainer_core.errors import Refused

QUICK = Patience(first_seconds=0.01, longest_seconds=0.02, watchdog_seconds=5, poll_seconds=0.01)
GLOB = "data/en/*/*.jsonl"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    (tmp_path / "tokenizer.json").write_bytes(dump(byte_tokenizer()))
    with hub_in_use(monkeypatch, page_size=3) as running:
        yield running


def texts(name: str, count: int = 20) -> bytes:
    return json_lines([f"{name} number {i} is a text" for i in range(count)], "content")


def tree(folder: str = "data/en") -> dict[str, bytes]:
    files = {
        f"{folder}/{dump}/part-{i}.jsonl": texts(f"{dump}{i}") for dump in ("d1", "d2") for i in range(2)
    }
    return files | {
        f"{folder}/d1/_SUCCESS": b"",
        f"{folder}/d2/part-9.jsonl": b"",
        f"{folder}/d2/notes.md": b"notes",
        "README.md": b"read me",
        "data/zh/part-0.jsonl": texts("zh"),
    }


def init(tmp_path: Path, work: str = "line", known: Path | None = None, **source: Any) -> InitReport:
    spec = {"repo": "own/er", "glob": "data/en/*/*", "stratum": {"level": 3}, "heldout": 0} | source
    return init_data_line(
        tmp_path / work,
        recipe=write_recipe(tmp_path / "recipe.json", {"web": spec}),
        tokenizer=tmp_path / "tokenizer.json",
        eos_id=EOS,
        cycle_tokens=1000,
        calibration_from=known,
        patience=QUICK,
    )


def refused(tmp_path: Path, **source: Any) -> str:
    with pytest.raises(Refused) as error:
        init(tmp_path, **source)
    assert not (tmp_path / "line" / "data.json").exists()
    (problem,) = error.value.problems
    assert problem.startswith("source 'web': ")
    return problem


def test_a_repository_is_pinned_with_its_files(hub: Hub, tmp_path: Path) -> None:
    commit = hub.commit("own/er", tree())
    report = init(tmp_path)
    (web,) = load_data_line(tmp_path / "line").sources
    assert (web.repo, web.revision, web.commit, web.folder) == ("own/er", "main", commit, None)
    assert web.identity == "own/er/data/en/*/*" and web.text == TextRule(kind="column", column="content")
    assert [(f.path, f.size, f.stratum) for f in web.files] == [
        (path, len(data), path.split("/")[2])
        for path, data in sorted(tree().items())
        if path.startswith("data/en") and data and path.endswith("jsonl")
    ]
    assert web.ignored == ("data/en/d1/_SUCCESS", "data/en/d2/notes.md", "data/en/d2/part-9.jsonl")
    assert {stratum.name for stratum in web.strata} == {"d1", "d2"}
    exact = sum(
        len(f"{d}{i} number {n} is a text") + 1 for d in ("d1", "d2") for i in range(2) for n in range(20)
    )
    assert sum(stratum.tokens for stratum in web.strata) == pytest.approx(exact, rel=0.02)
    text = str(report)
    assert f"from own/er, main = {commit}" in text
    assert "1 ignored (empty): data/en/d2/part-9.jsonl" in text and "d1/_SUCCESS" in text
    assert report.disk().downloads == sum(file.size for file in web.files)


def test_one_file_of_each_stratum_is_downloaded_and_none_stays(hub: Hub, tmp_path: Path) -> None:
    hub.commit("own/er", tree())
    init(tmp_path)
    fetched = {request.key.split("/")[-2] for request in hub.requests("GET .*resolve.*jsonl")}
    assert fetched == {"d1", "d2"} and len({r.key for r in hub.requests("GET .*resolve.*jsonl")}) == 2
    assert sorted(path.name for path in (tmp_path / "line").iterdir()) == [
        "calibration.json",
        "data.json",
        "recipe.json",
    ]


def test_measurements_are_taken_over_without_a_download(hub: Hub, tmp_path: Path) -> None:
    hub.commit("own/er", tree())
    first = init(tmp_path)
    hub.plan("resolve", "status:404*")
    second = init(tmp_path, work="second", known=tmp_path / "line", text="auto")
    assert second.line.sources == first.line.sources
    assert second.taken_over == {"web": ("d1", "d2")} and first.taken_over == {"web": ()}
    assert "measured before: 2 of 2 strata" in str(second)
    hub.clear_plans()
    files = tree() | {"data/en/d2/part-0.jsonl": texts("other")}
    hub.commit("own/er", files)
    third = init(tmp_path, work="third", known=tmp_path / "line")
    assert third.taken_over == {"web": ("d1",)}


def test_an_interrupted_init_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.commit("own/er", tree())
    hub.plan("GET .*d2/part.*jsonl", "status:404*")
    refused(tmp_path)
    hub.clear_plans()
    before = len(hub.requests("GET .*resolve"))
    assert init(tmp_path).taken_over == {"web": ("d1",)}
    assert all("/d2/" in request.key for request in hub.requests("GET .*resolve")[before:])


def test_a_young_branch_is_refused_a_named_commit_is_not(hub: Hub, tmp_path: Path) -> None:
    commit = hub.commit("own/er", tree(), age_hours=2)
    problem = refused(tmp_path)
    assert (
        "main last changed 2.0 hours ago, less than the 24" in problem
        and f'"revision": "{commit}"' in problem
    )
    assert "less than the 3 that" in refused(tmp_path, min_age_hours=3)
    assert init(tmp_path, work="a", min_age_hours=1).line.sources[0].commit == commit
    assert init(tmp_path, work="b", min_age_hours=0).line.sources[0].commit == commit
    assert init(tmp_path, work="c", revision=commit).line.sources[0].commit == commit


def test_a_renamed_directory_is_told_and_the_old_revision_still_works(hub: Hub, tmp_path: Path) -> None:
    old = hub.commit("own/er", tree("data/en"))
    hub.commit("own/er", tree("data/en-preview"))
    problem = refused(tmp_path)
    assert "'data/en/*/*' matches nothing; 'en' is not in data: there are en-preview/, zh/" in problem
    assert init(tmp_path, revision=old).line.sources[0].commit == old


def test_files_above_the_stratum_level_and_a_directory_without_files(hub: Hub, tmp_path: Path) -> None:
    hub.commit("own/er", tree())
    assert "the stratum rule names level 3" in refused(tmp_path, glob="data/zh/*")
    assert "1 ignored (no reader for this ending): README.md" in refused(
        tmp_path, glob="*.md", stratum="none"
    )


def test_missing_and_gated_repositories_say_why(hub: Hub, tmp_path: Path) -> None:
    hub.commit("own/er", tree())
    assert "no/where" in refused(tmp_path, repo="no/where")
    assert "v9" in refused(tmp_path, revision="v9")
    hub.repos["own/er"].token = "hf_secret"
    assert "HF_TOKEN" in refused(tmp_path)


def test_a_pointer_in_place_of_its_file_is_refused(hub: Hub, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"
    hub.commit("own/er", tree() | {"data/en/d1/part-1.jsonl": pointer})
    assert "pointer" in refused(tmp_path)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(pointer)
    with pytest.raises(Refused, match=r"a\.jsonl: is a Git LFS pointer"):
        init(tmp_path, repo=None, folder="texts", glob="*", stratum="none")


def test_an_added_token_of_a_template_must_be_a_marker(hub: Hub, tmp_path: Path) -> None:
    template = [MARKERS[0], "{role}: {content}", MARKERS[1]]
    rule = {"messages": "chat", "template": template}
    assert 'name it in "markers"' in refused(tmp_path, text=rule)


def test_parts_of_a_template_that_are_no_tokens_are_told(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    folder.mkdir()
    row = {"chat": [{"role": "user", "content": f"a question of some length, {i}"} for i in range(9)]}
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(9)))
    rule = {"messages": "chat", "template": ["<|no token|>", "{role}: {content}", MARKERS[1], "\n"]}
    place = {"repo": None, "folder": "chats", "glob": "*", "stratum": "none", "text": rule}
    report = init(tmp_path, markers=[MARKERS[1]], **place)
    assert "plain text of the template, no tokens of their own: '<|no token|>'\n" in str(report)


def test_text_columns_that_differ_between_strata(hub: Hub, tmp_path: Path) -> None:
    other = {f"data/en/d2/part-{i}.jsonl": json_lines(["a text"] * 9, "body") for i in range(2)}
    hub.commit("own/er", tree() | other)
    assert "the text column differs between files: 'content' in data/en/d1" in refused(tmp_path)


def test_a_flaky_hub_is_waited_for(hub: Hub, tmp_path: Path) -> None:
    hub.commit("own/er", tree())
    hub.plan("GET .*tree", "status:503", "status:429:retry-after=0")
    hub.plan("GET .*resolve.*d1", "corrupt", "cut:10", "reset")
    assert init(tmp_path).line.sources[0].strata[0].name == "d1"
