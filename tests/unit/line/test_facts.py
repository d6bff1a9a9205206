"""Facts are what the directories say now, and are read without the large files that they do not need."""

from __future__ import annotations

import builtins
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tools.real_line import make_real_line
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.line.cycles import Delete, Download, Tokenize, Train, next_actions
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.ops.facts import read_facts


@pytest.fixture
def line(tmp_path: Path) -> LinePaths:
    return make_real_line(tmp_path, cycles=3)


def prepare(line: LinePaths, *cycles: int) -> DataPaths:
    data = DataPaths(line.root.parent / "data")
    preparer = CyclePreparer(data.root)
    for cycle in cycles:
        preparer.download(cycle)
        preparer.tokenize(cycle)
    return data


def opened(call: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that a call opens."""
    names: list[str] = []
    plain = builtins.open

    def look(file: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(Path(str(file)).name)
        return plain(file, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", look)
        patch.setattr("io.open", look)
        call()
    return names


def test_facts_follow_the_directories(line: LinePaths) -> None:
    assert next_actions(read_facts(line.root, None)) == [Download(0)]
    data = prepare(line, 0)
    facts = read_facts(line.root, None)
    assert (facts.published, facts.downloaded, facts.current) == ({0}, {0}, 0)
    assert next_actions(facts) == [Train(0), Download(1)]
    assert facts.ends == {0: facts.ends[0]} and facts.ends[0] > 0
    CyclePreparer(data.root).download(1)
    assert next_actions(read_facts(line.root, None)) == [Train(0), Tokenize(1)]
    data.cycle(0).rename(data.cycles / "000000.deleted")
    facts = read_facts(line.root, None)
    assert (facts.published, facts.half_deleted) == (frozenset(), {0})
    assert next_actions(facts) == [Delete(0), Tokenize(0)]


def test_a_shard_that_goes_and_comes_back_is_noticed(line: LinePaths, tmp_path: Path) -> None:
    data = prepare(line, 0)
    assert read_facts(line.root, None).published == {0}
    shard = next(path for path in data.cycle(0).rglob("*") if path.is_file())
    shard.rename(tmp_path / "away")
    assert read_facts(line.root, None).published == frozenset()
    (tmp_path / "away").rename(shard)
    assert read_facts(line.root, None).published == {0}
    shutil.rmtree(next(path for path in data.cycle(0).iterdir() if path.is_dir()))
    assert read_facts(line.root, None).published == frozenset()


def test_looking_again_reads_neither_data_json_nor_a_manifest(
    line: LinePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = prepare(line, 0, 1)
    first = opened(lambda: read_facts(line.root, None), monkeypatch)
    assert "data.json" not in first
    assert first.count("000000.json") <= 1, "a manifest is read once"
    again = opened(lambda: read_facts(line.root, None), monkeypatch)
    assert not {"data.json", "000000.json", "000001.json", "cycles.jsonl"} & set(again), again
    CyclePreparer(data.root).delete_cycle(0)
    assert 0 not in read_facts(line.root, None).published
