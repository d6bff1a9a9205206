"""Files of a folder source: one fixed order, strata by rule, pins that notice a change."""

from pathlib import Path

import pytest

from tests.unit.data.inputs import write
from trainer_core.data.files.folder import list_folder, pin_files, verify_file
from trainer_core.data.files.listing import stratum_of
from trainer_core.errors import Refused


def test_readable_files_are_taken_sorted_and_others_reported(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "b/1.parquet", "a.txt", "c/d/e.jsonl.zst", "x.JSONL.GZ"):
        write(tmp_path / name, ["x"])
    for name in ("b/_SUCCESS", "readme.md", ".cache/a.jsonl", "b/_tmp.jsonl", "y.jsonl.bz2"):
        write(tmp_path / name, ["x"])
    listing = list_folder(tmp_path, "**/*")
    assert listing.files == ("a.txt", "b/1.parquet", "b/2.jsonl", "c/d/e.jsonl.zst", "x.JSONL.GZ")
    assert listing.ignored == (".cache/a.jsonl", "b/_SUCCESS", "b/_tmp.jsonl", "readme.md", "y.jsonl.bz2")
    assert list_folder(tmp_path, "b/*.jsonl").files == ("b/2.jsonl",)


def test_a_missing_folder_and_a_pattern_without_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="nowhere: this folder does not exist"):
        list_folder(tmp_path / "nowhere", "**/*")
    write(tmp_path / "a.csv", ["x"])
    with pytest.raises(Refused, match=r"matches no readable file \(1 ignored \(no reader .*\): a.csv\)"):
        list_folder(tmp_path, "**/*")


def test_a_pattern_that_is_none_and_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(Refused, match=r"glob '\*\*\.jsonl' is no pattern"):
        list_folder(tmp_path, "**.jsonl")
    with pytest.raises(Refused, match="matches no readable file"):
        list_folder(tmp_path, "a\0*")
    (tmp_path / "b\udcff.jsonl").write_text("{}")
    with pytest.raises(Refused, match="1 file names are not UTF-8"):
        list_folder(tmp_path, "*")


def test_strata_by_rule() -> None:
    assert stratum_of("x/y/z.jsonl", "none") == "all"
    assert stratum_of("x/y/z.jsonl", "file") == "x/y/z.jsonl"
    assert stratum_of("x/y/z.jsonl", 1) == "x"
    assert stratum_of("x/y/z.jsonl", 2) == "y"


def test_files_above_the_stratum_level_are_all_refused(tmp_path: Path) -> None:
    for name in ("top.jsonl", "x/in.jsonl", "also.jsonl"):
        write(tmp_path / name, ["x"])
    with pytest.raises(Refused) as refused:
        pin_files(tmp_path, list_folder(tmp_path, "**/*").files, 1)
    assert [problem.split(":")[0] for problem in refused.value.problems] == ["also.jsonl", "top.jsonl"]


def test_a_pinned_file_that_changed_or_vanished_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ["one"])
    (pinned,) = pin_files(tmp_path, ("a.jsonl",), "none")
    assert verify_file(tmp_path, pinned) == path
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    with pytest.raises(Refused, match=pinned.digest):
        verify_file(tmp_path, pinned)
    write(path, ["longer"])
    with pytest.raises(Refused, match=rf"has \d+ bytes, {pinned.size} were pinned"):
        verify_file(tmp_path, pinned)
    path.unlink()
    with pytest.raises(Refused, match="is gone"):
        verify_file(tmp_path, pinned)
