"""The disk bound that `data init` prints: never passed by real lines, and not far above what they take."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.disk_watch import watching
from tests.tools.made_line import SHARES, prepare, write_recipe, write_sources
from tests.tools.tiny_data import register, write_byte_tokenizer
from trainer_core.data.heldout.validation import make_heldout
from trainer_core.data.making.calibration import load_calibration
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.prepare.disk_bound import RAW_BUDGET_BYTES, disk_bound, raw_bytes
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.sources import DataLine, load_data_line
from trainer_core.line.paths import DataPaths


@pytest.mark.parametrize(
    ("files", "docs", "cycle_tokens"),
    [(2, 120, 3000), (6, 60, 12_000)],
)
def test_a_line_stays_below_its_bound(tmp_path: Path, files: int, docs: int, cycle_tokens: int) -> None:
    write_sources(tmp_path, *SHARES, files=files, docs=docs)
    eos_id = write_byte_tokenizer(tmp_path / "tokenizer.json")
    paths = DataPaths(tmp_path / "line")
    peak = [0]
    with watching(paths, peak):
        report = init_data_line(
            paths.root,
            recipe=write_recipe(tmp_path, (0, SHARES)),
            tokenizer=tmp_path / "tokenizer.json",
            eos_id=eos_id,
            cycle_tokens=cycle_tokens,
        )
        make_heldout(paths.root)
        register(paths.root)
        for cycle in range(3):
            if cycle == 2:
                CyclePreparer(paths.root).delete_cycle(0)
            prepare(paths.root, cycle)
    bound = report.disk()
    assert 0 < peak[0] <= bound.total == sum(v for k, v in bound.to_json().items() if k != "total")
    assert bound.total < 8 * peak[0]


def test_what_the_bound_grows_with(tmp_path: Path) -> None:
    write_sources(tmp_path, *SHARES)
    eos_id = write_byte_tokenizer(tmp_path / "tokenizer.json")
    arguments = {"tokenizer": tmp_path / "tokenizer.json", "eos_id": eos_id}
    recipe = write_recipe(tmp_path, (0, SHARES))
    line = init_data_line(tmp_path / "line", recipe=recipe, cycle_tokens=2000, **arguments).line
    calibration = load_calibration(tmp_path / "line")
    one = disk_bound(line, calibration, workers=1)
    assert disk_bound(line, calibration, workers=3).spools == pytest.approx(3 * one.spools, abs=3)
    assert disk_bound(line, calibration, workers=1, cycles=4).shards == pytest.approx(2 * one.shards, abs=2)
    larger = replace(line, cycle_tokens=20_000)
    assert disk_bound(larger, calibration, workers=1).shards > 4 * one.shards
    # All there is bounds the tokenized files, however large a cycle is.
    assert (
        disk_bound(larger, calibration, workers=1).open_files
        < 3 * sum(stratum.tokens for source in line.sources for stratum in source.strata) * 2
    )
    assert raw_bytes(line) == one.downloads == 0


def test_downloads_stay_in_the_budget_or_are_one_file(tmp_path: Path) -> None:
    def line(*sizes: int) -> DataLine:
        write_sources(tmp_path, "code")
        eos_id = write_byte_tokenizer(tmp_path / "tokenizer.json")
        work = tmp_path / str(len(list(tmp_path.iterdir())))
        init_data_line(
            work,
            recipe=write_recipe(tmp_path, (0, {"code": 1})),
            tokenizer=tmp_path / "tokenizer.json",
            eos_id=eos_id,
            cycle_tokens=100,
        )
        value = load_data_line(work).to_json()
        value["sources"]["code"] |= {"repo": "own/er", "revision": "main", "commit": "0" * 40, "folder": None}
        value["sources"]["code"]["files"] = [[f"{i}", size, "0" * 64, "t0"] for i, size in enumerate(sizes)]
        return DataLine.from_json(value)

    assert raw_bytes(line(5, 7)) == 12
    assert raw_bytes(line(*[1 << 30] * 40)) == RAW_BUDGET_BYTES
    assert raw_bytes(line(1 << 40, 5)) == 1 << 40
