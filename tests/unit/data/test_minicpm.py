"""The recipe on the open MiniCPM corpora, from a hub that serves the same layouts in small, to its report."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tools.disk_watch import watching
from tests.tools.hub import Hub, hub_in_use
from tests.tools.made_line import prepare
from tests.tools.minicpm_hub import FIM, MATH, serve, write_tokenizer
from tests.tools.tiny_data import register
from tests.unit.data.inputs import EOS, MARKERS
from trainer_core.data.audit.report import data_report
from trainer_core.data.audit.verify import verify_data_line
from trainer_core.data.heldout.validation import make_heldout
from trainer_core.data.hub.waiting import Patience
from trainer_core.data.making.init_report import InitReport
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.recipe.schema import DEFAULT_RECIPE, load_recipe
from trainer_core.data.sources import TextRule
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

QUICK = Patience(first_seconds=0.01, longest_seconds=0.02, watchdog_seconds=5, poll_seconds=0.01)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Hub, dict[str, str]]]:
    with pytest.MonkeyPatch.context() as patch, hub_in_use(patch, page_size=7) as hub:
        yield hub, serve(hub)


def init(
    root: Path, recipe: Path = DEFAULT_RECIPE, work: str = "line", known: Path | None = None
) -> InitReport:
    write_tokenizer(root / "tokenizer.json")
    return init_data_line(
        root / work,
        recipe=recipe,
        tokenizer=root / "tokenizer.json",
        eos_id=EOS,
        cycle_tokens=6400,
        calibration_from=known,
        patience=QUICK,
    )


@dataclass(frozen=True)
class Made:
    """The line after two cycles."""

    work: Path
    report: InitReport
    peak: int


@pytest.fixture(scope="module")
def line(served: tuple[Hub, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("minicpm")
    peak = [0]
    with watching(DataPaths(root / "line"), peak):
        report = init(root)
        make_heldout(root / "line")
        register(root / "line")
        prepare(root / "line", 0, 1)
    return Made(work=root / "line", report=report, peak=peak[0])


def changed(path: Path, **changes: dict[str, Any]) -> Path:
    value = json.loads(DEFAULT_RECIPE.read_text())
    for name, change in changes.items():
        value["sources"][name] |= change
    path.write_text(json.dumps(value))
    return path


def test_every_layout_is_pinned(served: tuple[Hub, dict[str, str]], line: Made) -> None:
    commits, report = served[1], line.report
    sources = {source.name: source for source in report.line.sources}
    assert list(sources) == list(load_recipe(DEFAULT_RECIPE).sources)
    for source in sources.values():
        assert source.repo is not None and source.commit == commits[source.repo]
    strata = {name: [stratum.name for stratum in source.strata] for name, source in sources.items()}
    assert strata["code_l2"] == ["cpp", "rust"] and strata["code_l3"] == ["rs", "sh"]
    assert strata["fineweb_en"] == ["CC-MAIN-2023-50", "CC-MAIN-2024-10"]
    assert strata["math_l3"] == [
        f"{kind}-Synthetic" for kind in ("Conversation", "Multi-Style", "QA", "Textbook-Exercise")
    ]
    assert strata["infllm_v2"] == ["train/chat.parquet", "train/fim.parquet", "train/long.parquet"]
    assert strata["stack_v3"] == strata["fineweb_zh"] == strata["math_l2"] == ["all"]
    assert sources["stack_v3"].text == TextRule(kind="list", column="files", field="content", join="\n\n")
    assert sources["infllm_v2"].text == TextRule(kind="column", column="text")
    assert {source.text.column for source in sources.values()} == {"content", "files", "text"}
    stray = "data/ultrafineweb_en_v1_4/CC-MAIN-2023-50/_SUCCESS"
    assert [source.ignored for source in sources.values() if source.ignored] == [(stray,)]
    assert f"with . or _): {stray}" in str(report)
    assert sources["infllm_v2"].markers == (*MARKERS, *FIM)


def test_markers_are_tokens_where_declared_and_characters_elsewhere(line: Made) -> None:
    calibration = line.report.calibration
    assert all(
        entry.decoded_exactly == entry.sampled_documents
        for source in calibration.values()
        for entry in source.strata.values()
    )
    web = calibration["fineweb_zh"].strata["all"]
    assert web.default_control_ids == 2 * web.sampled_documents  # </s> and <functional>
    chat = calibration["infllm_v2"].strata["train/chat.parquet"]
    assert chat.default_control_ids == 2 * chat.sampled_documents  # its own markers are none of them


def test_two_cycles_hold_all_shares(line: Made) -> None:
    work = line.work
    assert verify_data_line(work, sources=True).problems == []
    report = data_report(work)
    shares = load_recipe(DEFAULT_RECIPE).pieces[0].shares
    assert len(report.sources) == len(shares)
    for source in report.sources:
        assert source.share == pytest.approx(float(shares[source.source])) and abs(source.deviation_rows) < 1
        for stratum in source.strata:
            assert abs(stratum.deviation_documents) < 2
        assert source.heldout_docs > 0
    assert 0 < line.peak <= line.report.disk().total
    assert not list((work / "incoming").rglob("*.parquet"))


def test_a_renamed_directory(served: tuple[Hub, dict[str, str]], line: Made, tmp_path: Path) -> None:
    old = {"glob": "data/UltraData-Math-L2/*.parquet"}
    with pytest.raises(Refused) as refused:
        init(tmp_path, changed(tmp_path / "recipe.json", math_l2=old), known=line.work)
    (problem,) = refused.value.problems
    assert problem.startswith("source 'math_l2': ")
    assert "'UltraData-Math-L2' is not in data: there are UltraData-Math-L2-preview/" in problem
    first = next(iter(served[0].repos[MATH].commits))
    before = init(
        tmp_path, changed(tmp_path / "recipe.json", math_l2=old | {"revision": first}), "old", line.work
    )
    assert set(before.taken_over["math_l1"]) == {"CC-MAIN-2022-05", "CC-MAIN-2023-06"}
    assert before.line.source("math_l2").commit == first != before.line.source("math_l1").commit
