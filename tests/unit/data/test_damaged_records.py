"""Records of a wrong shape, and values that no other one agrees with: `data verify` names every one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.made_line import copy_of, made_line
from trainer_core.data.audit.verify import verify_data_line
from trainer_core.data.records import damage_named, refuse_other
from trainer_core.errors import Refused
from trainer_core.line.files import canonical_json
from trainer_core.line.paths import DataPaths

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_line(tmp_path_factory.mktemp("records"), cycles=2)


@pytest.fixture
def work(whole: Path) -> Path:
    return copy_of(whole)


def change(path: Path, edit: Change) -> None:
    value = json.loads(path.read_bytes())
    edit(value)
    path.write_bytes(canonical_json(value))


def rename(key: str, *where: str | int) -> Change:
    """The change of a key's name below a place."""

    def edit(value: Any) -> None:
        for step in where:
            value = value[step]
        value[key + "x"] = value.pop(key)

    return edit


MANIFEST_KEYS: list[tuple[str, tuple[str | int, ...]]] = [
    ("guard", ()),
    ("control_ids", ("guard",)),
    ("start_token", ()),
    ("state_before", ()),
    ("values", ("state_before",)),
    ("debt", ("state_before", "values", "sources", "code", "strata", "t0")),
    ("heads_out", ()),
    ("tokenizer", ()),
    ("rows", ("parts", 0)),
    ("characters", ("pieces", "code", 0)),
    ("piece", ()),
]


def test_a_renamed_key_of_a_manifest_is_named_beside_all_other_problems(work: Path) -> None:
    paths = DataPaths(work)
    path = paths.manifest(1)
    kept = path.read_bytes()
    shard = paths.cycle(0) / "seg-000" / "code.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    for key, where in MANIFEST_KEYS:
        change(path, rename(key, *where))
        problems = verify_data_line(work).problems
        assert any(str(path) in p and key in p and "restore it from a backup" in p for p in problems), (
            key,
            problems,
        )
        assert any(str(shard) in problem for problem in problems), key
        path.write_bytes(kept)


CHANGES: list[tuple[str, Change, str]] = [
    ("data.json", rename("denominator", "pieces", 0), "pieces.0.denominator"),
    ("data.json", lambda v: v["pieces"][0].update(denominator=5), "pieces.0.denominator"),
    ("data.json", rename("kind", "sources", "code"), "sources.code.kind"),
    ("data.json", lambda v: v["sources"]["code"].update(kind="hub"), "sources.code.kind"),
    ("state.json", lambda v: v.update(more=1), "more"),
    ("consumer.json", rename("length", "row_lengths", 0), "length"),
    ("consumer.json", lambda v: v["row_lengths"][0].update(length=None), "consumer.json"),
    ("consumer.json", lambda v: v.update(more=1), "more"),
    ("calibration.json", rename("longest_bytes", "sources", "code", "strata", "t0"), "longest_bytes"),
    ("calibration.json", lambda v: v["sources"]["code"].update(encode_sha256="0"), "encode_sha256 is '0'"),
    ("calibration.json", lambda v: v["sources"]["code"].update(heldout=0.2), "heldout is 0.2"),
    ("calibration.json", lambda v: v["sources"]["code"]["strata"].pop("t1"), "strata is ['t0']"),
    ("calibration.json", lambda v: v["sources"].pop("code"), "has no measurements of code"),
    (
        "calibration.json",
        lambda v: v["sources"]["code"]["strata"]["t0"].update(sampled_tokens=7),
        "t0: its estimate of tokens is",
    ),
    (
        "calibration.json",
        lambda v: v["sources"]["code"]["strata"]["t0"].update(file_bytes=7),
        "t0.file is",
    ),
    (
        "calibration.json",
        lambda v: v["sources"]["code"]["strata"]["t0"].update(files_sha256="0"),
        "t0.files_sha256 is '0'",
    ),
    ("heldout/heldout.json", lambda v: v["sources"]["code"]["t0"].update(tokens=7), "and 7 tokens are"),
    ("heldout/heldout.json", lambda v: v["sources"]["code"]["t0"].update(documents=99), "99 documents"),
    ("heldout/heldout.json", lambda v: v.update(more=1), "more"),
    ("recipe.json", lambda v: v["pieces"][0]["shares"].update(code=0.5, prose=0.5), "pieces.0: is from"),
    ("recipe.json", lambda v: v["sources"]["code"].update(heldout=0.2), "sources.code.heldout: is 0.2"),
    ("recipe.json", lambda v: v["sources"]["code"].update(more=1), "sources.code.more"),
    ("recipe.json", lambda v: v["pieces"][0]["shares"].update(code=0.5), "sum to"),
]


def test_values_that_fit_nothing_else_are_found(work: Path) -> None:
    for name, edit, words in CHANGES:
        path = work / name
        kept = path.read_bytes()
        change(path, edit)
        problems = verify_data_line(work).problems
        assert any(str(path) in problem and words in problem for problem in problems), (name, words, problems)
        path.write_bytes(kept)
    assert verify_data_line(work).ok


def test_a_moved_folder_and_a_grown_recipe_are_no_problem(work: Path) -> None:
    path = work / "recipe.json"
    change(path, lambda value: value["sources"]["code"].update(folder="elsewhere"))
    change(path, lambda value: value["pieces"].append({"from_cycle": 9, "shares": {"code": 1}}))
    assert verify_data_line(work).ok
    path.unlink()
    assert verify_data_line(work).problems == [f"{path}: this file does not exist"]


def test_hashes_keep_their_form(work: Path) -> None:
    paths = DataPaths(work)
    path = next(iter(sorted(p for p in paths.hashes.rglob("*.u64"))))
    assert verify_data_line(work).checked["files of hashes"] > 0
    for wrong in (b"\1" * 8, b"\0" * 7, bytes([0] * 7 + [2] + [0] * 7 + [1])):
        path.write_bytes(wrong)
        (problem,) = verify_data_line(work).problems
        assert problem.startswith(f"{path}: holds no sorted sample")
    path.write_bytes(b"")
    path.with_name("other.u64").write_bytes(b"")
    (problem,) = verify_data_line(work).problems
    assert "other.u64: belongs to no pinned file" in problem


def test_a_record_that_cannot_be_opened_hides_no_other(work: Path) -> None:
    paths = DataPaths(work)
    shard = paths.cycle(0) / "seg-000" / "code.safetensors"
    shard.unlink()
    shard.mkdir()
    rows = sorted(paths.heldout.glob("rows-*.json"))
    (paths.heldout / "rows-7.json").write_text("{}")
    paths.cycles_log.write_text('{"kind": "published", "cycle": [0], "manifest_sha256": 5}\n')
    change(paths.manifest(1), rename("guard"))
    problems = verify_data_line(work).problems
    for words in (f"{shard}: cannot be read", "rows-7.json: format is None", "guard"):
        assert any(words in problem for problem in problems), (words, problems)
    assert verify_data_line(work).checked["validation rows"] == len(rows) + 1


def test_a_difference_is_named_by_its_key() -> None:
    refuse_other({"a": [1, {"b": 2}]}, {"a": (1, {"b": 2})})
    for found, words in (
        ({"a": [1, {"c": 2}]}, "a.1.b: this key is missing"),
        ({"a": [1, {"b": 2}], "d": 1}, "d: no record has this key"),
        ({"a": [1]}, "a: is"),
        ({"a": [2, {"b": 2}]}, "a.0: is 2, its other values make it 1"),
    ):
        with pytest.raises(ValueError, match=words):
            refuse_other(found, {"a": [1, {"b": 2}]})
    with pytest.raises(Refused, match="AssertionError"), damage_named(Path("x"), "restore it"):
        raise AssertionError
