"""The raw files of a data line: always the pinned bytes, never a pointer, and gone when they are used."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.hub import Hub, hub_in_use
from tests.tools.hub_lines import QUICK, on_hub, pinned_files
from tests.tools.tiny_data import disk_line
from trainer_core.data.files.folder import pin_files, verify_file
from trainer_core.data.files.pinned_file import is_pointer
from trainer_core.data.files.source_files import SourceFiles
from trainer_core.data.hub.transfer import part_of
from trainer_core.data.plan.manifest import read_manifest
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.sources import load_data_line
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

CASES = Path(__file__).parents[2] / "cases"
ALL = os.environ.get("NSTRAIN_CRASH_ALL") == "1"
POINTERS = ("part-00000.parquet", "part-00001.jsonl")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_in_use(monkeypatch) as running:
        yield running


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return disk_line(tmp_path, files=2, docs=10)


def source_files(work: Path) -> SourceFiles:
    return SourceFiles(DataPaths(work), load_data_line(work), patience=QUICK)


def texts(work: Path) -> dict[tuple[str, str], bytes]:
    """What the files of `disk_line` hold."""
    folder = work.parent / "sources"
    found = (path for path in folder.rglob("*") if path.is_file())
    return {
        (path.relative_to(folder).parts[0], "/".join(path.relative_to(folder).parts[1:])): path.read_bytes()
        for path in found
    }


def shards(work: Path, cycle: int) -> list[list[dict[str, object]]]:
    """The records of a prepared cycle's shards, digests included."""
    return read_manifest(DataPaths(work).manifest(cycle)).shards()


def test_a_downloads_life(hub: Hub, work: Path) -> None:
    wanted = texts(work)
    on_hub(hub, work)
    shutil.rmtree(work.parent / "sources")
    files = source_files(work)
    assert files.is_hub("code") and files.held() == [] and files.held_bytes() == 0
    for (source, path), data in wanted.items():
        got = files.fetch(source, path)
        assert got == work / "incoming" / source / path and got.read_bytes() == data
    assert files.held() == sorted(wanted)
    assert files.held_bytes() == sum(len(data) for data in wanted.values())
    for key in wanted:
        files.discard(*key)
        files.discard(*key)
    assert files.held() == [] and files.held_bytes() == 0
    assert list((work / "incoming").iterdir()) == []


def test_folders_stay_as_they_are(work: Path) -> None:
    files = source_files(work)
    wanted = texts(work)
    for (source, path), data in wanted.items():
        assert files.fetch(source, path).read_bytes() == data
        files.discard(source, path)
        with pytest.raises(Refused, match=f"{path}: cannot be read; put a good copy there"):
            files.refetch(source, path)
    assert not files.is_hub("code") and files.held() == [] and files.held_bytes() == 0
    assert texts(work) == wanted


def test_an_unfinished_download_is_held_until_it_is_discarded(hub: Hub, work: Path) -> None:
    (source, path), data = next(iter(texts(work).items()))
    on_hub(hub, work)
    part = part_of(work / "incoming" / source / path)
    part.parent.mkdir(parents=True)
    part.write_bytes(data[:10])
    files = source_files(work)
    assert files.held() == [(source, path)] and files.held_bytes() == 10
    files.discard(source, path)
    assert files.held() == [] and not part.exists()


@pytest.mark.parametrize("seed", range(200 if ALL else 3))
def test_whatever_a_hub_does_the_bytes_are_the_pinned_ones(hub: Hub, work: Path, seed: int) -> None:
    wanted = texts(work)
    on_hub(hub, work)
    rng = random.Random(seed)
    faults = ("ok", "status:429:retry-after=0.02", "status:503", "reset", "cut:1", "cut:500")
    actions = [rng.choice((*faults, "corrupt") if n % 4 == 0 else faults) for n in range(40)]
    hub.plan("(GET|HEAD) .*/resolve/", *actions)
    files = source_files(work)
    for (source, path), data in wanted.items():
        assert files.fetch(source, path).read_bytes() == data
        assert set(files.held()) >= {(source, path)}
    assert files.held() == sorted(wanted) and files.held_bytes() == sum(map(len, wanted.values()))


def test_g01_a_cycle_from_a_hub_with_wrong_bytes_is_the_cycle_from_the_folder(
    hub: Hub, work: Path, tmp_path: Path
) -> None:
    twin = disk_line(tmp_path / "twin", files=2, docs=10)
    on_hub(hub, work)
    hub.plan("GET .*/resolve/", "corrupt", "ok", "corrupt", "corrupt", "cut:20", "ok", "corrupt")
    for line in (work, twin):
        preparer = CyclePreparer(line, patience=QUICK)
        preparer.download(0)
        preparer.tokenize(0)
    assert shards(work, 0) == shards(twin, 0)
    assert len([r for r in hub.requests("GET .*/resolve/") if r.action == "corrupt"]) >= 3
    assert not [path for path in (work / "incoming").rglob("*") if path.is_file()]


def test_g05_a_commit_gone_between_cycles_is_refused_and_made_cycles_stay(hub: Hub, tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    commits = on_hub(hub, work)
    preparer = CyclePreparer(work, patience=QUICK)
    preparer.tokenize(0)
    made = DataPaths(work).manifest(0).read_bytes()
    for source, commit in commits.items():
        hub.commit(f"tests/{source}", {"other.jsonl": b'{"text": "other"}\n'})
        hub.forget(f"tests/{source}", commit)
    cycle = 1
    with pytest.raises(Refused, match=r"pinned commit \w{40} is gone.*no other revision is used"):
        while True:  # open files may feed another cycle before a new one is wanted
            CyclePreparer(work, patience=QUICK).tokenize(cycle)
            cycle += 1
    assert DataPaths(work).manifest(0).read_bytes() == made
    assert CyclePreparer(work).published(0) and not CyclePreparer(work).published(cycle)


@pytest.mark.parametrize("damage", ["overwritten", "linked elsewhere"])
def test_g11_a_download_damaged_before_its_use_is_fetched_again(
    hub: Hub, work: Path, tmp_path: Path, damage: str
) -> None:
    twin = disk_line(tmp_path / "twin", files=2, docs=10)
    on_hub(hub, work)
    preparer = CyclePreparer(work, patience=QUICK)
    preparer.download(0)
    held = sorted((work / "incoming").rglob("*.jsonl"))
    assert held
    for target in held:
        _damage(target, damage, tmp_path)
    preparer.tokenize(0)
    CyclePreparer(twin).tokenize(0)
    assert shards(work, 0) == shards(twin, 0)


def _damage(target: Path, damage: str, folder: Path) -> None:
    changed = target.read_bytes().replace(b"text", b"tex!", 1)
    if damage == "linked elsewhere":
        target.unlink()
        target.symlink_to(folder / "other.jsonl")
    target.write_bytes(changed)


@pytest.mark.parametrize("name", POINTERS)
def test_g07_pointers_in_a_folder_are_named_at_init_and_at_use(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(CASES / "G07" / name, folder)
    with pytest.raises(Refused, match=rf"{name}: is a Git LFS pointer, .*git lfs pull"):
        pin_files(folder, (name,), "none")
    (folder / name).write_bytes(b"real" * 100)
    (pinned,) = pin_files(folder, (name,), "none")
    shutil.copy(CASES / "G07" / name, folder)
    with pytest.raises(Refused, match=rf"{name}: is a Git LFS pointer"):
        verify_file(folder, pinned)


@pytest.mark.parametrize("name", POINTERS)
def test_g07_pointers_on_a_hub_are_named_and_never_tokenized(hub: Hub, work: Path, name: str) -> None:
    on_hub(hub, work)
    line = load_data_line(work)
    spec = line.sources[0]
    commit = hub.commit("tests/pointer", {f"t0/{name}": (CASES / "G07" / name).read_bytes()})
    pinned = replace(pinned_files("tests/pointer", commit)[f"t0/{name}"], stratum="t0")
    pointed = replace(spec, repo="tests/pointer", commit=commit, files=(pinned,), strata=spec.strata[:1])
    changed = replace(line, sources=(pointed, *line.sources[1:]))
    files = SourceFiles(DataPaths(work), changed, patience=QUICK)
    for _ in range(2):
        with pytest.raises(Refused, match=rf"t0/{name} at {commit}: is a Git LFS pointer, not the data"):
            files.fetch(spec.name, f"t0/{name}")


@pytest.mark.parametrize(
    ("data", "pointer"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 1\n" % (b"0" * 64), True),
        (b"version https://git-lfs.github.com/spec/v1\r\noid sha256:%s\r\nsize 1\r\n" % (b"0" * 64), True),
        (b"version https://hawser.github.com/spec/v1\noid sha256:%s\nsize 1\n" % (b"0" * 64), True),
        (
            b"version https://git-lfs.github.com/spec/v1\next-0-x sha256:1\noid sha256:%s\nsize 1\n"
            % (b"0" * 64),
            True,
        ),
        (b"version https://git-lfs.github.com/spec/v1 is how a pointer begins.\n", False),
        (b'{"text": "version https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 1"}\n', False),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n" + b"text " * 300, False),
        (b"", False),
    ],
)
def test_what_a_pointer_is(tmp_path: Path, data: bytes, pointer: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert is_pointer(path) is pointer
