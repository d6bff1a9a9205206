"""`data report`: what cycles held, recounted here from the shards and files themselves."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tools.made_line import SHARES, made_line
from trainer_core.data.audit.duplicates import repeated
from trainer_core.data.audit.report import data_report
from trainer_core.data.plan.manifest import read_manifest
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_line(tmp_path_factory.mktemp("reported"), cycles=4)


def new(work: Path, source: str) -> list[dict[str, Any]]:
    """What four cycles took new of a source."""
    manifests = [read_manifest(DataPaths(work).manifest(cycle)) for cycle in range(4)]
    return [piece for manifest in manifests for piece in manifest.value["pieces"][source]]


def test_shares_at_every_level(work: Path) -> None:
    report = data_report(work)
    manifests = [read_manifest(DataPaths(work).manifest(cycle)) for cycle in range(4)]
    rows = Counter[str]()
    for manifest in manifests:
        for segment in manifest.value["segments"]:
            rows.update(segment["rows"])
    assert {source.source: source.rows for source in report.sources} == dict(rows)
    for source in report.sources:
        assert source.share == SHARES[source.source]
        assert source.deviation_rows == rows[source.source] - SHARES[source.source] * rows.total()
        assert abs(source.deviation_rows) < 1
        assert source.tokens == 16 * source.rows
        assert sum(stratum.share for stratum in source.strata) == pytest.approx(1)
        taken = sum(stratum.tokens for stratum in source.strata)
        for stratum in source.strata:
            # Exact share of what was trained (and one token of context), cut at the nearest document.
            exact = stratum.share * (source.tokens + 1)
            assert stratum.deviation_tokens == pytest.approx(stratum.tokens - exact)
            assert stratum.taken == stratum.tokens / taken
            assert 60 <= stratum.longest_tokens <= 80
            assert abs(stratum.deviation_documents) < 2
    text = str(report)
    assert (
        "cycles 0 to 3" in text
        and "recipe 75.0000%" in text
        and "(longest document of the file measured at init: " in text
    )


def test_counts_of_files_and_cycles(work: Path) -> None:
    whole, first, rest = data_report(work), data_report(work, (0, 0)), data_report(work, (1, 3))
    for a, b, c in zip(whole.sources, first.sources, rest.sources, strict=True):
        assert a.rows == b.rows + c.rows and a.documents == b.documents + c.documents
        assert a.heldout_docs == b.heldout_docs + c.heldout_docs > 0
        assert Counter(a.skipped) == Counter(b.skipped) + Counter(c.skipped)
        assert a.skipped["empty"] > 0
        for x, y, z in zip(a.strata, b.strata, c.strata, strict=True):
            assert x.deviation_tokens == pytest.approx(y.deviation_tokens + z.deviation_tokens)
    for source in whole.sources:
        # A token per byte and one per document's end.
        characters = [
            piece["tokens"] - (piece["doc_to"] - piece["doc_from"]) for piece in new(work, source.source)
        ]
        tokens = [piece["tokens"] for piece in new(work, source.source)]
        assert source.characters_per_token == pytest.approx(sum(characters) / sum(tokens), rel=0.02)
        assert source.duplicates == 0
    value = whole.to_json()
    assert value["cycles"] == [0, 3] and set(value["sources"]["code"]["strata"]) == {"t0", "t1"}


@pytest.mark.parametrize("cycles", [(0, 4), (2, 1), (-1, 0)])
def test_cycles_that_are_not_planned(work: Path, cycles: tuple[int, int]) -> None:
    with pytest.raises(Refused, match="there are 4 planned cycles, 0 to 3"):
        data_report(work, cycles)


def test_duplicates_are_estimated_across_files_and_sources(tmp_path: Path) -> None:
    hashes = {"a/x/1": [256, 512, 512], "a/y": [512, 768], "b/1": [768, 1024], "c/1": [1280]}
    for path, values in hashes.items():
        target = tmp_path / "hashes" / f"{path}.u64"
        target.parent.mkdir(parents=True, exist_ok=True)
        np.array(values, dtype="<u8").tofile(target)
    found = repeated(DataPaths(tmp_path))
    assert {name: (r.files, r.texts, r.within_source, r.across_sources) for name, r in found.items()} == {
        "a": (2, 4, 1, 1),
        "b": (1, 2, 0, 1),
        "c": (1, 1, 0, 0),
    }
    assert found["a"].estimates() == {"repeated_across_files": 256, "also_in_other_sources": 256}
    assert repeated(DataPaths(tmp_path / "none")) == {}
