"""`data verify`: an untouched line has no problem, and every kind of damage is found, all at once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.made_line import copy_of, made_line
from trainer_core.data.audit.verify import verify_data_line
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.line.files import canonical_json
from trainer_core.line.paths import DataPaths


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_line(tmp_path_factory.mktemp("whole"), cycles=3)


@pytest.fixture
def work(whole: Path) -> Path:
    return copy_of(whole)


def change_json(path: Path, change: Callable[[dict], None], *, canonical: bool = True) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_bytes(canonical_json(value) if canonical else json.dumps(value).encode())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def test_an_untouched_line_is_as_recorded(work: Path) -> None:
    found = verify_data_line(work, sources=True)
    assert found.ok and found.problems == [] == found.notes, str(found)
    assert found.checked["manifests"] == 3 and found.checked["shards"] == 6
    assert found.checked["open files"] > 0 and found.checked["held-out streams"] == 4
    assert found.checked["source files"] == 16
    assert "all as recorded" in str(found) and found.to_json()["ok"] is True


def test_deleted_cycles_are_no_problem(work: Path) -> None:
    CyclePreparer(work).delete_cycle(0)
    found = verify_data_line(work)
    assert found.ok and found.checked["shards"] == 4


def test_every_kind_of_damage_is_found_at_once(work: Path) -> None:
    paths = DataPaths(work)
    flip(paths.cycle(0) / "seg-000" / "code.safetensors")
    (paths.cycle(1) / "seg-000" / "prose.safetensors").unlink()
    change_json(paths.manifest(2), lambda value: value["parts"][0].update(order_start=1))
    opened = sorted(paths.open.rglob("*.safetensors"))
    opened[0].write_bytes(opened[0].read_bytes()[:-1])
    flip(paths.heldout / "prose" / "t0.safetensors")
    (paths.calibration).write_text("{}")
    problems = verify_data_line(work).problems
    for words in (
        "code.safetensors: blake2b is",
        "prose.safetensors: this shard is missing",
        "000002.json",
        f"{opened[0]}: not a complete shard",
        "t0.safetensors: this held-out stream is damaged",
        f"{paths.calibration}: format is None",
    ):
        assert any(words in problem for problem in problems), (words, problems)


def test_a_manifest_that_does_not_follow_the_one_before(work: Path) -> None:
    paths = DataPaths(work)
    shutil.copy(paths.manifest(1), work / "kept")
    change_json(paths.manifest(1), lambda value: value.update(start_token=5), canonical=False)
    problems = verify_data_line(work).problems
    assert any("is not in canonical form" in problem for problem in problems)
    assert any("start_token 5, its state says" in problem for problem in problems)
    shutil.copy(work / "kept", paths.manifest(1))

    def other_state(value: dict) -> None:
        value["state_before"] = json.loads(paths.manifest(0).read_bytes())["state_before"]

    change_json(paths.manifest(1), other_state)
    assert any("and cycle 0 ended at" in problem for problem in verify_data_line(work).problems)


def test_a_lost_manifest_and_a_state_of_another_line(work: Path) -> None:
    paths = DataPaths(work)
    paths.manifest(1).unlink()
    assert any("manifests of cycles [1] are missing" in p for p in verify_data_line(work).problems)
    assert verify_data_line(work / "nothing").problems[0].endswith(f"--work {work / 'nothing'}`")


def test_sources_and_tokenizer_are_compared_on_request(whole: Path, work: Path) -> None:
    path = whole.parent / "code" / "t0" / "f0.jsonl"
    before = path.read_bytes()
    tokenizer = whole.parent / "tokenizer.json"
    kept = tokenizer.read_bytes()
    try:
        path.write_bytes(before.replace(b"0", b"1", 1))
        assert verify_data_line(work).ok
        (problem,) = verify_data_line(work, sources=True).problems
        assert str(path) in problem and "was pinned" in problem
        tokenizer.write_bytes(kept + b"\n")
        assert any("the data line was made with" in problem for problem in verify_data_line(work).problems)
    finally:
        path.write_bytes(before)
        tokenizer.write_bytes(kept)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["pieces"]["code"][0].update(doc_to=value["pieces"]["code"][0]["doc_to"] + 1),
        lambda value: value["pieces"]["code"][0].update(path="t0/f9.jsonl"),
        lambda value: value["parts"][0].update(row_length=17),
        lambda value: value["segments"][0]["shards"][0].update(tokens=1),
        lambda value: value["heads_out"]["prose"][0].update(token_from=1),
    ],
)
def test_no_value_of_a_manifest_may_change(work: Path, change: Callable[[dict], None]) -> None:
    path = DataPaths(work).manifest(1)
    change_json(path, change)
    (problem,) = verify_data_line(work).problems
    assert str(path) in problem and "it was published as" in problem and "from a backup" in problem
