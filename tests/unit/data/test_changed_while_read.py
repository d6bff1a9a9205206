"""A file of a folder that changes between its comparison and the end of its reading is never used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tools.made_line import prepare, write_recipe, write_sources
from tests.tools.tiny_data import disk_line, published_bytes, write_byte_tokenizer
from tests.unit.data.inputs import write
from trainer_core.data.files import unchanged
from trainer_core.data.files.folder import pin_files, verify_file
from trainer_core.data.heldout import streams
from trainer_core.data.heldout.streams import record_path
from trainer_core.data.heldout.validation import make_heldout
from trainer_core.data.making import calibrate
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.plan.manifest import read_manifest
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.prepare.rebuild import rebuild_shards
from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens import reading
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

CHANGED = r"t\d/f\d\.jsonl: .*while it was read.*start again"


def other(path: Path) -> bytes:
    """Other text of the same length."""
    return path.read_bytes().replace(b"/", b"|")


def in_place(path: Path) -> None:
    path.write_bytes(other(path))


def dated_back(path: Path) -> None:
    before, data = path.stat(), other(path)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    new = path.with_name(".new")
    new.write_bytes(other(path))
    os.replace(new, path)


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"\n") + 1])


def gone(path: Path) -> None:
    path.unlink()


def linked_elsewhere(path: Path) -> None:
    elsewhere = path.with_name(".elsewhere")
    elsewhere.write_bytes(other(path))
    path.unlink()
    path.symlink_to(elsewhere)


CHANGES: list[Callable[[Path], None]] = [in_place, dated_back, replaced, cut, gone, linked_elsewhere]


@pytest.fixture(params=["before", "within"])
def meddle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """Let something happen to the first file that is read: before its first document, or after."""

    def install(change: Callable[[Path], None]) -> list[Path]:
        changed: list[Path] = []

        def meddled(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
            def documents(path: Path, *args: Any, **kwargs: Any) -> Iterator[Any]:
                if request.param == "before" and not changed:
                    changed.append(path)
                    change(path)
                for document in read(path, *args, **kwargs):
                    if not changed:
                        changed.append(path)
                        change(path)
                    yield document

            return documents

        for module in (reading, streams, calibrate):
            monkeypatch.setattr(module, "iter_documents", meddled(module.iter_documents))
        return changed

    return install


@pytest.mark.parametrize("change", CHANGES)
def test_tokens_of_a_changed_file_are_never_published(
    tmp_path: Path, meddle: Callable[..., list[Path]], change: Callable[[Path], None]
) -> None:
    work = disk_line(tmp_path, files=1, docs=5)
    path = load_data_line(work).source("code").files[0].path
    before = published_bytes(work)
    changed = meddle(change)
    with pytest.raises(Refused, match=CHANGED):
        OpenFiles(work, load_data_line(work)).tokenize("code", path)
    assert changed
    assert published_bytes(work) == before and not list(DataPaths(work).hashes.rglob("*.u64"))


@pytest.mark.parametrize("change", CHANGES)
def test_held_out_text_of_a_changed_file_is_never_kept(
    tmp_path: Path, meddle: Callable[..., list[Path]], change: Callable[[Path], None]
) -> None:
    work = disk_line(tmp_path, files=1, docs=5, heldout=0.5)
    changed = meddle(change)
    with pytest.raises(Refused, match=CHANGED):
        make_heldout(work, tokens_per_stratum=1)
    assert changed and not record_path(DataPaths(work)).exists()


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_measured_on_a_changed_file(
    tmp_path: Path, meddle: Callable[..., list[Path]], change: Callable[[Path], None]
) -> None:
    write_sources(tmp_path, "code", strata=1, files=1, docs=5)
    changed = meddle(change)
    with pytest.raises(Refused, match=CHANGED):
        init_data_line(
            tmp_path / "line",
            recipe=write_recipe(tmp_path, (0, {"code": 1})),
            tokenizer=tmp_path / "tokenizer.json",
            eos_id=write_byte_tokenizer(tmp_path / "tokenizer.json"),
            cycle_tokens=2000,
        )
    assert changed and not DataPaths(tmp_path / "line").data.exists()


def test_a_file_that_was_written_to_and_put_back_is_not_trusted(
    tmp_path: Path, meddle: Callable[..., list[Path]]
) -> None:
    work = disk_line(tmp_path, files=1, docs=5)
    path = load_data_line(work).source("code").files[0].path

    def rewritten(file: Path) -> None:
        data = file.read_bytes()
        in_place(file)
        file.write_bytes(data)
        os.utime(file, ns=(1, 1))

    meddle(rewritten)
    with pytest.raises(Refused, match=rf"{path}: was written to while it was read"):
        OpenFiles(work, load_data_line(work)).tokenize("code", path)
    OpenFiles(work, load_data_line(work)).tokenize("code", path)


def test_a_link_to_a_file_and_its_permissions_change_nothing(
    tmp_path: Path, meddle: Callable[..., list[Path]]
) -> None:
    work = disk_line(tmp_path, files=1, docs=5)
    path = load_data_line(work).source("code").files[0].path

    def harmless(file: Path) -> None:
        os.link(file, tmp_path / "backup")
        file.chmod(0o444)

    changed = meddle(harmless)
    assert OpenFiles(work, load_data_line(work)).tokenize("code", path).documents and changed


def test_old_files_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", ["text"])
    (pinned,) = pin_files(tmp_path, ("a.jsonl",), "none")
    compared: list[Path] = []
    monkeypatch.setattr(unchanged, "difference", lambda path, file: compared.append(path))
    with unchanged.unchanged(path, pinned, unchanged.look(path)):
        pass
    assert compared == [path], "a file as young as this may change within one tick of its clock"
    os.utime(path, (1, 1))
    monkeypatch.setattr(unchanged, "_YOUNG_NS", 0)
    with unchanged.unchanged(path, pinned, unchanged.look(path)):
        pass
    assert compared == [path]


def test_what_takes_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "sub" / "a.jsonl", ["text"])
    (pinned,) = pin_files(tmp_path, ("sub/a.jsonl",), "none")
    path.unlink()
    cases: list[tuple[Callable[[], None], str]] = [
        (lambda: path.mkdir(), "is no regular file"),
        (lambda: os.mkfifo(path), "is no regular file"),
        (lambda: path.symlink_to(path), "cannot be read"),
        (lambda: path.symlink_to("nowhere"), "is gone"),
    ]
    for make, said in cases:
        make()
        with pytest.raises(Refused, match=rf"a\.jsonl: {said}"):
            verify_file(tmp_path, pinned)
        path.rmdir() if path.is_dir() else path.unlink()
    path.parent.rmdir()
    path.parent.write_text("no folder")
    with pytest.raises(Refused, match=r"a\.jsonl: is gone"):
        verify_file(tmp_path, pinned)
    with pytest.raises(Refused, match=r"a\.jsonl: vanished.*start again"):
        pin_files(tmp_path, ("sub/a.jsonl",), "none")


@pytest.mark.parametrize("change", [cut, in_place])
def test_a_rebuild_over_other_tokens_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    work = disk_line(tmp_path)
    prepare(work, 0, 1)
    paths = DataPaths(work)
    pieces = read_manifest(paths.manifest(1)).value["pieces"]["code"]
    path = Path(str(load_data_line(work).source("code").folder)) / pieces[0]["path"]
    shutil.rmtree(paths.open)
    change(path)
    monkeypatch.setattr(
        "trainer_core.data.files.source_files.verify_file", lambda folder, file: folder / file.path
    )
    monkeypatch.setattr("trainer_core.data.files.unchanged.difference", lambda path, file: None)
    with pytest.raises(Refused) as caught:
        CyclePreparer(work).rebuild(1, tmp_path / "out")
    assert [problem for problem in caught.value.problems if f"{path.name}.safetensors" in problem]
    assert "cycle 1: " in str(caught.value) and "delete it, it is made again" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_rebuild_without_what_the_cycle_took_over_is_refused_by_name(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    prepare(work, 0, 1)
    preparer = CyclePreparer(work)
    manifest = read_manifest(DataPaths(work).manifest(1))
    (head,) = {docs["path"] for docs in manifest.value["heads_in"]["code"]}
    counts = preparer.files.counts

    def shorter(source: str, path: str) -> Any:
        ends = counts(source, path)
        return ends if ends is None or path != head else np.minimum(ends, 1)

    preparer.files.counts = shorter  # type: ignore[method-assign]
    manifest.value["pieces"]["code"][:] = [
        piece for piece in manifest.value["pieces"]["code"] if piece["path"] != head
    ]
    with pytest.raises(Refused, match=rf"{head}.*took over"):
        rebuild_shards(manifest, tmp_path / "out", preparer.files, preparer._read, "uint16")
