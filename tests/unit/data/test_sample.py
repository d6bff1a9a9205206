"""The sample corpus: the same bytes twice, several sources and formats, ready for `data init`."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer_core.data.files.listing import suffix_of
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.sample import build_sample
from trainer_core.data.sample.catalog import CATALOG, SourcePlan, StratumPlan
from trainer_core.data.sample.collect import LONGEST_DOCUMENT, collect_source, docstrings, split_document
from trainer_core.data.text.read import TextRule, iter_documents
from trainer_core.errors import Refused


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    out = tmp_path_factory.mktemp("sample") / "out"
    said: list[str] = []
    return out, build_sample(out, max_mb=2, progress=said.append), said


def files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_the_same_environment_gives_the_same_bytes(sample: tuple[Path, dict[str, Any], list[str]]) -> None:
    out, facts, said = sample
    again = out.parent / "again"
    assert build_sample(again, max_mb=2) == facts
    assert files(again) == files(out)
    assert len(said) > len(CATALOG)


def test_facts_and_formats(sample: tuple[Path, dict[str, Any], list[str]]) -> None:
    out, facts, _ = sample
    assert facts == json.loads((out / "sample.json").read_text())
    assert set(facts["sources"]) == {"code-python", "code-native", "code-web", "docs", "stubs"}
    assert 1.2e6 < facts["bytes"] < 2.2e6
    suffixes = {suffix_of(path) for path in files(out)}
    assert {".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst"} <= suffixes
    texts = [
        text for path in (out / "code-python").rglob("*.parquet") for text in iter_documents(path, TextRule())
    ]
    assert len(texts) == facts["sources"]["code-python"]["documents"] == len(set(texts))
    assert max(len(text.encode()) for text in texts) <= LONGEST_DOCUMENT


def test_it_makes_a_data_line(sample: tuple[Path, dict[str, Any], list[str]]) -> None:
    out, facts, _ = sample
    report = init_data_line(
        out.parent / "line",
        recipe=out / facts["recipe"],
        tokenizer=out / facts["tokenizer"],
        eos_id=facts["eos_id"],
        cycle_tokens=65_536,
    )
    assert report.line.tokenizer.vocab_size == facts["vocab_size"] == 4096
    for source in report.line.sources:
        counted = facts["sources"][source.name]
        assert len(source.strata) == len(counted["strata"])
        assert report.source_tokens(source.name) == pytest.approx(counted["bytes"] / 3.3, rel=0.5)
        assert source.heldout * counted["documents"] == pytest.approx(12, rel=0.02) or source.heldout in (
            0.05,
            0.5,
        )
    assert {source.heldout for source in report.line.sources} > {0.05}, "the web's few documents need more"
    python = report.line.piece_at(0)
    assert (python.shares["code-python"], python.denominator) == (4, 10)
    assert [s.name for s in report.line.source("stubs").strata] == ["all"]


def test_the_catalog_has_four_sources_and_twelve_strata() -> None:
    assert len(CATALOG) >= 4 and sum(len(plan.strata) for plan in CATALOG) >= 12
    assert sum(plan.share for plan in CATALOG) == pytest.approx(1)


def test_strata_of_few_documents_become_other() -> None:
    plan = SourcePlan(
        name="small",
        share=1,
        format="jsonl",
        stratum_rule={"level": 1},
        strata=(
            StratumPlan(name="many", distributions=("numpy",), suffixes=(".py",), weight=9),
            StratumPlan(name="few", distributions=("pydantic",), suffixes=(".py",)),
            StratumPlan(name="none", distributions=("no-such-distribution",), suffixes=(".py",)),
        ),
    )
    seen: set[bytes] = set()
    strata = collect_source(plan, 700_000, seen)
    assert set(strata) == {"many", "other"}
    assert len(strata["many"]) >= 40 > len(strata["other"]) > 0
    assert collect_source(plan, 700_000, seen)["other"] != strata["other"]


def test_long_documents_are_split_at_lines_else_between_characters() -> None:
    lines = "".join(f"line {i}\n" for i in range(100))
    parts = list(split_document(lines, 64))
    assert "".join(parts) == lines and all(len(part) <= 64 and part.endswith("\n") for part in parts)
    wide = "日本語" * 50
    parts = list(split_document(wide, 64))
    assert "".join(parts) == wide and all(len(part.encode()) <= 64 for part in parts)
    assert list(split_document("short")) == ["short"] and list(split_document("")) == []


def test_docstrings_are_long_and_unindented() -> None:
    prose = "\n    ".join(["Sentence of words."] * 40)
    source = f'def f():\n    """{prose}\n    """\n    x = """short"""\n'
    assert list(docstrings(source)) == ["\n".join(["Sentence of words."] * 40) + "\n"]


def test_a_folder_with_content_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(Refused, match="not empty"):
        build_sample(tmp_path, max_mb=1)
    with pytest.raises(Refused, match="max_mb 0"):
        build_sample(tmp_path / "new", max_mb=0)
    assert files(tmp_path) == {"mine.txt": b"mine"}
