"""A manifest is canonical, complete and without times."""

import hashlib
import itertools
import json
from pathlib import Path

import pytest

from tests.tools.tiny_data import disk_line, two_part_line
from trainer_core.data.plan.manifest import read_cycle_manifest, read_manifest, write_manifest
from trainer_core.data.plan.manifest_shape import ManifestShape
from trainer_core.data.plan.state import PlanState
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.sources import load_data_line
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

KEYS = {
    "cycle",
    "planner_version",
    "data_digest",
    "piece",
    "start_token",
    "parts",
    "segments",
    "pieces",
    "heads_in",
    "heads_out",
    "state_before",
    "state_after",
    "tokenizer",
    "guard",
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = disk_line(tmp_path_factory.mktemp("manifest"))
    for cycle in range(3):
        CyclePreparer(folder).tokenize(cycle)
    return folder


def test_bytes_are_canonical_and_their_sha256_is_the_identity(work: Path) -> None:
    data = DataPaths(work).manifest(1).read_bytes()
    value = json.loads(data)
    assert data == json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert read_manifest(DataPaths(work).manifest(1)).sha256 == hashlib.sha256(data).hexdigest()
    assert set(value) >= KEYS
    assert "time" not in data.decode()
    assert str(work.parent) not in data.decode(), "places on disk do not belong to a cycle's identity"


def test_cycles_form_a_chain(work: Path) -> None:
    values = [read_manifest(DataPaths(work).manifest(cycle)).value for cycle in range(3)]
    assert values[0]["state_before"]["digest"] == PlanState().digest()
    for before, after in itertools.pairwise(values):
        assert after["state_before"] == before["state_after"]
        assert after["heads_in"] == before["heads_out"]
        trained = sum(part["num_rows"] * part["row_length"] for part in before["parts"])
        assert after["start_token"] == before["start_token"] + trained
    state = json.loads(DataPaths(work).state.read_text())
    assert state["digest"] == values[-1]["state_after"]["digest"]


def test_numbers_agree_with_each_other(work: Path) -> None:
    line = load_data_line(work)
    for cycle in range(3):
        value = read_manifest(DataPaths(work).manifest(cycle)).value
        (part,) = value["parts"]
        assert value["data_digest"] == line.digest()
        assert sum(part["rows"].values()) == part["num_rows"]
        for name, rows in part["rows"].items():
            assert sum(segment["rows"][name] for segment in value["segments"]) == rows
            new = sum(piece["tokens"] for piece in value["pieces"][name])
            shards = [s for segment in value["segments"] for s in segment["shards"] if s["source"] == name]
            assert sum(shard["tokens"] - 1 for shard in shards) == rows * part["row_length"]
            assert new > 0
            pinned = {file.path: file.digest for file in line.source(name).files}
            assert all(
                (piece["documents"] > 0 and piece["characters"] > piece["documents"])
                == (piece["doc_from"] == 0)
                for piece in value["pieces"][name]
            )
            assert all(piece["file_sha256"] == pinned[piece["path"]] for piece in value["pieces"][name])


def test_missing_or_foreign_manifests_are_refused(work: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        read_manifest(DataPaths(work).manifest(99))
    (tmp_path / "m.json").write_text('{"format": "manifest/9"}')
    with pytest.raises(Refused, match="manifest/9"):
        read_manifest(tmp_path / "m.json")
    paths = DataPaths(tmp_path)
    write_manifest(paths.manifest(0), read_manifest(DataPaths(work).manifest(1)).value)
    with pytest.raises(Refused, match=r"000000\.json: this is the manifest of cycle 1"):
        read_cycle_manifest(paths, 0)


def test_any_damaged_key_is_refused_by_file_and_key(work: Path, tmp_path: Path) -> None:
    good = dict(read_manifest(DataPaths(work).manifest(1)).value)
    path = tmp_path / "m.json"
    write_manifest(path, good)
    read_manifest(path)
    read = [key for key in good if key in ManifestShape.model_fields]
    assert len(read) == len(ManifestShape.model_fields)
    for key in read:
        for damaged in ({k: v for k, v in good.items() if k != key}, {**good, key: [{}]}):
            write_manifest(path, damaged)
            with pytest.raises(Refused, match=rf"m\.json: .*{key}.*restore it from a backup"):
                read_manifest(path)
    segments = good["segments"]
    for damaged_segments, words in (
        (segments[1:], "rising rows"),
        ([{**segments[0], "first_row": 1}, *segments[1:]], "rising rows"),
        ([{**segments[0], "rows": {"code": 1}}, *segments[1:]], "do not hold its"),
        ([{**s, "shards": s["shards"][::-1][1:]} for s in segments], "do not fit its rows"),
    ):
        write_manifest(path, {**good, "segments": damaged_segments})
        with pytest.raises(Refused, match=words):
            read_manifest(path)
    after = good["state_after"]
    write_manifest(path, {**good, "state_after": {**after, "digest": "0"}})
    with pytest.raises(Refused, match="state_after: the digest"):
        read_manifest(path)


def test_a_cycle_of_two_row_lengths_has_two_parts_that_follow_each_other(tmp_path: Path) -> None:
    work = two_part_line(tmp_path)
    manifest = read_manifest(DataPaths(work).manifest(0))
    one, two = manifest.parts
    assert (one["row_length"], one["num_rows"], one["updates"]) == (16, 64, 8)
    assert (two["row_length"], two["num_rows"], two["updates"]) == (32, 28, 7)
    assert (two["start_token"], two["order_start"]) == (1024, 64)
    segments = manifest.value["segments"]
    assert [segment["part"] for segment in segments] == [0, 0, 1, 1]
    path = tmp_path / "m.json"
    for key in ("start_token", "order_start"):
        write_manifest(path, {**manifest.value, "parts": [one, {**two, key: two[key] + 1}]})
        with pytest.raises(Refused, match="parts do not follow each other"):
            read_manifest(path)
    assert [manifest.order(part).digest() for part in (0, 1)] == [one["order_digest"], two["order_digest"]]
