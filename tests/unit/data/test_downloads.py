"""Downloads of a cycle: within their budget, beside the tokenizers, gone when used, same bytes as folders."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.disk_watch import watching
from tests.tools.hub import Hub, hub_in_use
from tests.tools.hub_lines import QUICK, on_hub
from tests.tools.made_line import SHARES, write_recipe, write_sources
from tests.tools.tiny_data import disk_line, published_bytes, register, write_byte_tokenizer
from trainer_core.data.making.calibration import load_calibration
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.prepare.disk_bound import disk_bound
from trainer_core.data.prepare.file_steps import FileStep
from trainer_core.data.prepare.files import Effort
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.sources import load_data_line
from trainer_core.errors import Leaving, Refused
from trainer_core.line.files import read_jsonl
from trainer_core.line.paths import DataPaths


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_in_use(monkeypatch) as running:
        yield running


def preparer(
    work: Path, *, raw_bytes: int = 1 << 30, here_bytes: int = 1 << 30, **more: object
) -> CyclePreparer:
    effort = Effort(downloads=3, tokenizers=2, raw_bytes=raw_bytes, here_bytes=here_bytes)
    return CyclePreparer(work, effort=effort, patience=QUICK, **more)  # type: ignore[arg-type]


def shards(work: Path) -> dict[str, bytes]:
    return {name: data for name, data in published_bytes(work).items() if name.startswith("cycles/")}


@pytest.mark.parametrize("here_bytes", [1 << 30, 0], ids=["here", "workers"])
@pytest.mark.parametrize("files", [1, 3], ids=["one-file", "three-files"])
def test_raw_files_never_exceed_their_budget_and_leave(
    hub: Hub, tmp_path: Path, here_bytes: int, files: int
) -> None:
    folder = disk_line(tmp_path / "folder", files=3)
    work = disk_line(tmp_path / "hub", files=3)
    on_hub(hub, work)
    sizes = [file.size for source in load_data_line(work).sources for file in source.files]
    budget = max(sizes) * files
    most, at_first = 0, 0

    def look(step: FileStep) -> None:
        nonlocal most
        most = max(most, cycle_files.files.sources.held_bytes())

    cycle_files = preparer(work, raw_bytes=budget, here_bytes=here_bytes, report=look)
    for cycle in range(3):
        cycle_files.download(cycle)
        at_first = max(at_first, cycle_files.files.sources.held_bytes())
        cycle_files.tokenize(cycle)
        assert cycle_files.files.sources.held() == []
        assert not (work / "incoming").exists() or not list((work / "incoming").rglob("*"))
    assert 0 < at_first <= budget and 0 < most <= budget
    assert sum(sizes) > budget, "the case must not fit at once"
    plain = preparer(folder)
    for cycle in range(3):
        plain.download(cycle)
        plain.tokenize(cycle)
    assert shards(work) == shards(folder)


def test_what_an_earlier_process_downloaded_is_used_and_the_rest_is_deleted(hub: Hub, tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    on_hub(hub, work)
    first = preparer(work)
    needed = {(ref.source, ref.path) for ref in first.needed(0)}
    other = next(key for key in first.files._files if key not in needed)
    first.files.sources.fetch(*other)
    first.download(0)
    assert other not in first.files.sources.held()
    hub.log.clear()
    preparer(work).tokenize(0)
    again = {request.key for request in hub.log if "/resolve/" in request.key}
    assert len(again) < len(needed), "only what a better count asks for is downloaded again"
    assert not [key for key in again if any(key.endswith(path) for _, path in needed)]


def test_a_refused_file_ends_the_step_although_others_wait_for_the_hub(hub: Hub, tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    on_hub(hub, work)
    wanted = preparer(work).needed(0)
    hub.plan(rf"/{wanted[0].source}/resolve/.*{wanted[0].path}", "gated*")
    hub.plan(r"GET .*/resolve/", "status:503*")
    steps: list[FileStep] = []
    for step in ("download", "tokenize"):
        with pytest.raises(Refused, match=wanted[0].path):
            getattr(preparer(work, report=steps.append), step)(0)
    assert wanted[0].path in {step.path for step in steps if step.state == "failed"}
    hub.clear_plans()
    done = preparer(work)
    done.download(0)
    done.tokenize(0)
    assert done.published(0)


def test_a_hub_that_is_away_can_be_left_and_is_no_failure(hub: Hub, tmp_path: Path) -> None:
    work, leaving = disk_line(tmp_path), threading.Event()
    on_hub(hub, work)
    hub.plan(r"GET .*", "status:503*")
    threading.Timer(0.5, leaving.set).start()
    with pytest.raises(Leaving):
        preparer(work, leaving=leaving).download(0)
    assert [row for row in read_jsonl(DataPaths(work).events) if row["kind"] == "downloaded"] == []


def test_every_cycle_is_rebuilt_from_manifests_and_the_hub(hub: Hub, tmp_path: Path) -> None:
    work = disk_line(tmp_path, files=5)
    paths = DataPaths(work)
    on_hub(hub, work)
    shutil.rmtree(tmp_path / "sources")
    made = preparer(work)
    for cycle in range(5):
        made.download(cycle)
        made.tokenize(cycle)
    expected = shards(work)
    assert {name.split("/")[1] for name in expected} == {f"{cycle:06d}" for cycle in range(5)}
    for entry in list(work.iterdir()):
        if entry.is_dir() and entry != paths.manifests:
            shutil.rmtree(entry)
        elif entry.is_file() and entry != paths.data:
            entry.unlink()
    rebuilt = preparer(work)
    for cycle in (3, 0, 4, 1, 2):
        out = tmp_path / "out" / "cycles" / f"{cycle:06d}"
        out.parent.mkdir(parents=True, exist_ok=True)
        rebuilt.rebuild(cycle, out)
    found = {
        p.relative_to(tmp_path / "out").as_posix(): p.read_bytes() for p in (tmp_path / "out").rglob("*.*")
    }
    assert found == expected
    assert rebuilt.files.sources.held() == []


@pytest.mark.parametrize("here_bytes", [1 << 30, 0], ids=["here", "workers"])
def test_five_cycles_from_a_hub_stay_below_the_disk_bound(hub: Hub, tmp_path: Path, here_bytes: int) -> None:
    """As a line prepares: a trained cycle leaves before the one after next is begun."""
    write_sources(tmp_path, *SHARES, files=5, docs=60)
    tokenizer = tmp_path / "tokenizer.json"
    eos_id = write_byte_tokenizer(tokenizer)
    work, recipe = tmp_path / "line", write_recipe(tmp_path, (0, SHARES))
    init_data_line(work, recipe=recipe, tokenizer=tokenizer, eos_id=eos_id, cycle_tokens=3000)
    register(work)
    on_hub(hub, work)
    bound = disk_bound(load_data_line(work), load_calibration(work), workers=2)
    cycle_files, peak = preparer(work, raw_bytes=5000, here_bytes=here_bytes), [0]
    with watching(DataPaths(work), peak):
        for cycle in range(5):
            if cycle >= 2:
                cycle_files.delete_cycle(cycle - 2)
            cycle_files.download(cycle)
            cycle_files.tokenize(cycle)
    assert 0 < peak[0] <= bound.total - bound.downloads + 5000
