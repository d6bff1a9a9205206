"""Names in a folder that are no files, each refused or listed and none dropped, and names that collide."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.made_line import made_line
from tests.unit.data.inputs import write
from trainer_core.data.audit.duplicates import repeated
from trainer_core.data.audit.verify import verify_data_line
from trainer_core.data.files.folder import list_folder
from trainer_core.data.files.listing import reasons, sort_out
from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens.fingerprints import hashes_path
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths


def listen(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], None]] = {
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link that cannot be followed": lambda path: path.symlink_to(path.name),
    "a pipe": os.mkfifo,
    "a socket": listen,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_looks_like_a_file_and_is_none_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "sub" / "good.jsonl", ["text"])
    KINDS[kind](tmp_path / "sub" / "bad.jsonl")
    for pattern in ("**/*", "sub/*.jsonl"):
        with pytest.raises(Refused, match=rf"sub/bad\.jsonl \({kind}\).*(remove|narrow)"):
            list_folder(tmp_path, pattern)
    assert list_folder(tmp_path, "sub/good*").files == ("sub/good.jsonl",)


def test_a_link_to_a_device_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "good.jsonl", ["text"])
    (tmp_path / "bad.jsonl").symlink_to("/dev/null")
    with pytest.raises(Refused, match=r"bad\.jsonl \(a device\)"):
        list_folder(tmp_path, "*")


@pytest.mark.parametrize("kind", KINDS)
def test_the_others_are_listed_with_the_reason(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "good.jsonl", ["text"])
    for name in ("README", ".#good.jsonl"):
        KINDS[kind](tmp_path / name)
    listing = list_folder(tmp_path, "**/*")
    assert (listing.files, listing.ignored) == (("good.jsonl",), (".#good.jsonl", "README"))
    said = reasons(listing.ignored, str(tmp_path))
    assert f"1 ignored ({kind}): README" in said and "1 ignored (hidden" in said


def test_a_link_to_a_folder_that_is_not_there_is_listed(tmp_path: Path) -> None:
    write(tmp_path / "here" / "good.jsonl", ["text"])
    (tmp_path / "away").symlink_to("nowhere")
    listing = list_folder(tmp_path, "*/*.jsonl")
    assert (listing.files, listing.ignored) == (("here/good.jsonl",), ("away",))
    (tmp_path / "here" / "good.jsonl").unlink()
    with pytest.raises(Refused, match=r"matches no readable file.*a link to nothing\): away"):
        list_folder(tmp_path, "*/*.jsonl")


def test_a_folder_that_may_not_be_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "closed" / "x.jsonl", ["text"])
    scan = os.scandir

    def scandir(path: Path) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(Refused, match=r"closed: cannot be read \(Permission denied\)"):
        list_folder(tmp_path, "**/*")


@pytest.mark.parametrize("suffix", [".safetensors", ".u64"])
def test_names_whose_outputs_collide_are_refused(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "a.jsonl", ["text"])
    write(tmp_path / f"a.jsonl{suffix}" / "b.jsonl", ["text"])
    with pytest.raises(Refused, match=rf"a\.jsonl and a\.jsonl\{suffix}/b\.jsonl.*rename"):
        list_folder(tmp_path, "**/*")
    with pytest.raises(Refused, match="1 pair"):
        sort_out({"a.jsonl": 1, f"a.jsonl{suffix}/c/b.jsonl": 1, "d.jsonl": 1}, "**", "a hub")
    assert list_folder(tmp_path, "*").files == ("a.jsonl",)


def test_the_names_that_are_checked_are_those_that_are_made(tmp_path: Path) -> None:
    work = made_line(tmp_path)
    files = OpenFiles(work, load_data_line(work))
    assert files.path("s", "a.jsonl").name == "a.jsonl.safetensors"
    assert hashes_path(DataPaths(work), "s", "a.jsonl").name == "a.jsonl.u64"


def test_a_folder_of_any_name_is_no_leftover(tmp_path: Path) -> None:
    work = made_line(tmp_path, cycles=1)
    before = repeated(DataPaths(work))
    (DataPaths(work).open / "code" / "t0.safetensors").mkdir()
    (DataPaths(work).hashes / "code" / "t0.u64").mkdir()
    assert repeated(DataPaths(work)) == before
    assert verify_data_line(work).problems == []
