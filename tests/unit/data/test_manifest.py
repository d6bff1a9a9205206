"""A manifest is canonical, complete and without times."""

import hashlib
import itertools
import json
from pathlib import Path

import pytest

from tests.tools.tiny_data import disk_line
from trainer_core.data.manifest import read_manifest
from trainer_core.data.plan_state import PlanState
from trainer_core.data.prepare import CyclePreparer
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
            pinned = {file.path: file.sha256 for file in line.source(name).files}
            assert all(piece["file_sha256"] == pinned[piece["path"]] for piece in value["pieces"][name])


def test_missing_or_foreign_manifests_are_refused(work: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        read_manifest(DataPaths(work).manifest(99))
    (tmp_path / "m.json").write_text('{"format": "manifest/9"}')
    with pytest.raises(Refused, match="manifest/9"):
        read_manifest(tmp_path / "m.json")
