"""Files that open well and cannot be read to their end: refused whole; downloads are fetched again first."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tools.hub import Hub, hub_in_use
from tests.tools.hub_lines import QUICK, pinned_files
from tests.tools.tiny_data import disk_line
from tests.unit.data.inputs import json_lines, zstd
from trainer_core.data.files.folder import pin_files
from trainer_core.data.files.source_files import SourceFiles
from trainer_core.data.sources import DataLine, SourceFile, Stratum, load_data_line
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

G09 = Path(__file__).parents[2] / "cases" / "G09" / "bad_page.parquet"
REPO = "owner/corpus"
TEXTS = [f"document {number} " + "word " * (number % 50) for number in range(1000)]


def parquet(compression: str = "zstd", **options: object) -> bytes:
    """A thousand documents in five row groups."""
    sink = io.BytesIO()
    table = pa.table({"text": TEXTS})
    pq.write_table(table, sink, row_group_size=200, compression=compression, **options)
    return sink.getvalue()


def bad_page(row_group: int, compression: str = "zstd") -> bytes:
    """The same with the beginning of one data page overwritten, footer and size as they were."""
    data = bytearray(parquet(compression, use_dictionary=False))
    footer = pq.ParquetFile(io.BytesIO(bytes(data))).metadata
    start = footer.row_group(row_group).column(0).data_page_offset
    data[start : start + 40] = b"\xff" * 40
    return bytes(data)


def cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


BAD = {
    "g09.parquet": G09.read_bytes(),
    "first.parquet": bad_page(0),
    "last.parquet": bad_page(4),
    "snappy.parquet": bad_page(2, "snappy"),
    "plain.parquet": bad_page(2, "none"),
    "footer.parquet": cut(parquet()),
    "cut.jsonl.gz": cut(gzip.compress(json_lines(TEXTS))),
    "cut.jsonl.zst": cut(zstd(json_lines(TEXTS))),
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_in_use(monkeypatch) as running:
        yield running


def line_over(work: Path, file: SourceFile, **place: str | None) -> DataLine:
    """The tiny line with its first source replaced by one file."""
    line = load_data_line(work)
    stratum = (Stratum(name=file.stratum, tokens=1000),)
    spec = replace(line.sources[0], files=(file,), strata=stratum, heldout=0.0, **place)  # type: ignore[arg-type]
    return replace(line, sources=(spec, *line.sources[1:]))


def on_hub(hub: Hub, work: Path, name: str, data: bytes) -> DataLine:
    commit = hub.commit(REPO, {name: data})
    file = pinned_files(REPO, commit)[name]
    return line_over(work, file, folder=None, repo=REPO, commit=commit)


def opened(work: Path, line: DataLine) -> OpenFiles:
    files = OpenFiles(work, line)
    files.sources = SourceFiles(DataPaths(work), line, patience=QUICK)
    return files


def no_tokens(work: Path) -> bool:
    return not [path for path in (work / "open").rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", sorted(BAD))
def test_g09_a_download_that_cannot_be_read_is_fetched_once_more_and_refused_whole(
    hub: Hub, tmp_path: Path, name: str
) -> None:
    work = disk_line(tmp_path, files=1, docs=2)
    line = on_hub(hub, work, name, BAD[name])
    with pytest.raises(Refused, match=name):
        opened(work, line).tokenize("code", name)
    assert len(hub.requests(f"GET .*/resolve/.*/{name}")) == 2
    assert no_tokens(work)


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_folders_file_that_cannot_be_read_is_refused_whole(tmp_path: Path, name: str) -> None:
    work = disk_line(tmp_path, files=1, docs=2)
    folder = tmp_path / "sources" / "code"
    (folder / name).write_bytes(BAD[name])
    (pinned,) = pin_files(folder, (name,), "none")
    with pytest.raises(Refused, match=name):
        opened(work, line_over(work, pinned)).tokenize("code", name)
    assert no_tokens(work) and (folder / name).read_bytes() == BAD[name]


class Meddled(SourceFiles):
    """Something writes to a download between the comparison of its bytes and their reading."""

    def fetch(self, source: str, path: str) -> Path:
        found = super().fetch(source, path)
        found.write_bytes(bad_page(3))
        return found


def test_a_download_damaged_after_its_comparison_is_fetched_again_and_read(hub: Hub, tmp_path: Path) -> None:
    work = disk_line(tmp_path, files=1, docs=2)
    line = on_hub(hub, work, "good.parquet", parquet())
    files = opened(work, line)
    files.sources = Meddled(DataPaths(work), line, patience=QUICK)
    facts = files.tokenize("code", "good.parquet")
    assert facts.documents == len(TEXTS)
    assert len(hub.requests("GET .*/resolve/")) == 2
