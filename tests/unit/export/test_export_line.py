"""`export_line`: what is in the folder, what is refused, a line that removes checkpoints meanwhile."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.tools.faults import count_operations, run_killed
from tests.tools.written_line import written_line
from trainer_core.errors import DiskFull, Refused
from trainer_core.export import checkpoint as opening
from trainer_core.export import folder as writing
from trainer_core.export.checkpoint import open_checkpoint
from trainer_core.export.flat_file import FlatFile
from trainer_core.export.folder import Folder, new_folder
from trainer_core.export.record import read_export
from trainer_core.line.files import read_json, sha256_file
from trainer_core.line.paths import LinePaths
from trainer_core.models.base import Model
from trainer_core.ops.export import export_line

Line = tuple[LinePaths, Model]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Line:
    return written_line(tmp_path_factory.mktemp("line"), "llama-nano-cpu", 3, 6, ema=True)


@pytest.fixture
def line(made: Line, tmp_path: Path) -> Line:
    """A copy of the line whose checkpoints a test may damage."""
    copy = tmp_path / "trunk"
    shutil.copytree(made[0].root, copy)
    return LinePaths(copy), made[1]


def test_the_folder_holds_the_weights_under_their_names_there(made: Line, tmp_path: Path) -> None:
    paths, model = made
    done = export_line(paths.root, tmp_path / "out")
    found = load_file(done.out / "model.safetensors")
    ours = dict(model.named_parameters())
    assert len(found) == len(ours)
    assert torch.equal(found["model.embed_tokens.weight"], ours["embedding.weight"])
    assert torch.equal(
        found["model.layers.1.self_attn.o_proj.weight"], ours["blocks.1.attention.out_proj.weight"]
    )
    assert torch.equal(
        found["model.layers.0.post_attention_layernorm.weight"], ours["blocks.0.ffn_norm.weight"]
    )
    record = read_export(done.out)
    assert (record.line, record.update, record.tokens, record.ema) == ("trunk", 6, 576, False)
    assert record.checkpoint == sha256_file(paths.checkpoint(6) / "manifest.json")
    for name, file in record.files.items():
        content = (done.out / name).read_bytes()
        assert file == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert {path.name for path in done.out.iterdir()} == {*record.files, "nstrain.json"}
    assert done.bytes == sum(path.stat().st_size for path in done.out.iterdir())
    assert not (tmp_path / "out.part").exists()


def test_the_end_of_a_document_is_the_data_lines(made: Line, tmp_path: Path) -> None:
    export_line(made[0].root, tmp_path / "out")
    for name in ("config.json", "generation_config.json"):
        value = read_json(tmp_path / "out" / name)
        assert (value["eos_token_id"], value["bos_token_id"]) == (256, 256), name


def test_large_weights_come_in_parts_with_an_index(made: Line, tmp_path: Path) -> None:
    whole = load_file(export_line(made[0].root, tmp_path / "whole").out / "model.safetensors")
    out = export_line(made[0].root, tmp_path / "parts", shard_bytes=40_000).out
    index = read_json(out / "model.safetensors.index.json")
    parts = sorted(path.name for path in out.glob("model-*.safetensors"))
    assert len(parts) > 2 and parts[0] == f"model-00001-of-{len(parts):05d}.safetensors"
    assert set(index["weight_map"].values()) == set(parts)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in whole.values())
    found = {name: load_file(out / name) for name in parts}
    for name, tensor in whole.items():
        assert torch.equal(found[index["weight_map"][name]][name], tensor)


def test_an_earlier_checkpoint_and_an_average(made: Line, tmp_path: Path) -> None:
    out = tmp_path / "out"
    newest = load_file(export_line(made[0].root, out / "a").out / "model.safetensors")["model.norm.weight"]
    averaged = load_file(export_line(made[0].root, out / "b", ema=True).out / "model.safetensors")
    assert torch.equal(averaged["model.norm.weight"], newest / 2)
    earlier = export_line(made[0].root, out / "c", at=3)
    assert (read_export(earlier.out).update, read_export(out / "b").ema) == (3, True)
    assert not torch.equal(load_file(earlier.out / "model.safetensors")["model.norm.weight"], newest)


def test_what_is_in_the_way_is_refused_and_kept(made: Line, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    export_line(made[0].root, taken)  # an empty folder is as good as none
    before = {path: path.read_bytes() for path in taken.iterdir()}
    with pytest.raises(Refused, match="taken: is not empty"):
        export_line(made[0].root, taken)
    assert {path: path.read_bytes() for path in taken.iterdir()} == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Refused, match="file: is there and no folder"):
        export_line(made[0].root, tmp_path / "file")


def test_lines_without_what_was_asked_for(made: Line, line: Line, tmp_path: Path) -> None:
    paths, out = line[0], tmp_path / "out"
    with pytest.raises(Refused, match="no checkpoint of update 4; there are those of 3, 6"):
        export_line(paths.root, out, at=4)
    run = read_json(paths.run_json)
    paths.run_json.write_text(json.dumps(run | {"data": str(tmp_path / "nowhere")}))
    with pytest.raises(Refused, match="nowhere"):
        export_line(paths.root, out)
    shutil.rmtree(paths.checkpoints)
    with pytest.raises(Refused, match="no complete checkpoint"):
        export_line(paths.root, out)
    with pytest.raises(Refused, match="not a training line"):
        export_line(tmp_path, out)
    assert not out.exists() and not out.with_name("out.part").exists()


def test_a_line_without_an_average_says_so(tmp_path: Path) -> None:
    paths, _ = written_line(tmp_path, "llama-nano-cpu", 1)
    with pytest.raises(Refused, match="keeps no moving average"):
        export_line(paths.root, tmp_path / "out", ema=True)


def test_a_folder_that_export_did_not_leave_is_kept(made: Line, tmp_path: Path) -> None:
    """Another program's `out.part` was emptied."""
    part = tmp_path / "out.part"
    part.mkdir()
    (part / "mine").write_text("mine")
    with pytest.raises(Refused, match=r"out\.part: is in the way and no export's"):
        export_line(made[0].root, tmp_path / "out")
    assert (part / "mine").read_text() == "mine" and not (tmp_path / "out").exists()


def test_a_folder_among_the_lines_own_is_refused(line: Line) -> None:
    """The next start would remove it half written, or the line would find it where its checkpoint goes."""
    paths = line[0]
    data = Path(read_json(paths.run_json)["data"])
    (paths.root / "link").symlink_to(paths.checkpoints)
    for out in (paths.checkpoint(9), paths.root / "link" / "deep" / "u9", data / "exported"):
        with pytest.raises(Refused, match="name a folder elsewhere"):
            export_line(paths.root, out)
        assert not out.exists() and not out.parent.joinpath("u9.part").exists()
    assert export_line(paths.root, paths.root / "exported").record.update == 6


def test_a_damaged_newest_checkpoint_is_named_and_no_older_one_taken(line: Line, tmp_path: Path) -> None:
    paths = line[0]
    for name in ("manifest.json", "state.json", "params.safetensors"):
        for change in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-40] or b"x")):
            folder = paths.checkpoint(6)
            whole = (folder / name).read_bytes()
            change(folder / name)
            for at in (None, 6):
                with pytest.raises(Refused, match=rf"u6/{name}: .*\n.*u6: damaged; .*nstrain verify"):
                    export_line(paths.root, tmp_path / "out", at=at)
            (folder / name).write_bytes(whole)
    assert export_line(paths.root, tmp_path / "out").record.update == 6


def test_a_state_of_other_bytes_is_damage_whatever_is_in_it(line: Line, tmp_path: Path) -> None:
    """As long as before and still JSON: it was read before its hash was compared, and crashed."""
    state = line[0].checkpoint(6) / "state.json"
    content = state.read_bytes()
    state.write_bytes(content.replace(b'"model"', b'"nodel"', 1))
    with pytest.raises(Refused, match=r"state\.json: chunk 0"):
        export_line(line[0].root, tmp_path / "out")


def test_a_writer_that_comes_as_another_one_publishes_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens the folder, waits for the lock, and then holds that of a folder called `out` by now."""
    real = writing.fcntl.flock

    def late(fd: int, how: int) -> None:
        monkeypatch.setattr(writing.fcntl, "flock", real)
        real(fd, how)
        (tmp_path / "out.part").rename(tmp_path / "out")
        (tmp_path / "out.part").mkdir()
        (tmp_path / "out.part" / "third").write_text("of a third one")

    monkeypatch.setattr(writing.fcntl, "flock", late)
    with pytest.raises(Refused, match="another process is writing it"), new_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out.part" / "third").exists()


def test_a_path_that_cannot_be_is_refused(made: Line, tmp_path: Path) -> None:
    for out in (tmp_path / ("x" * 254), Path("/proc/nstrain")):
        with pytest.raises(Refused, match=r"\.part: "):
            export_line(made[0].root, out)


def test_a_changed_byte_is_never_exported(line: Line, tmp_path: Path) -> None:
    paths = line[0]
    file = paths.checkpoint(6) / "params.safetensors"
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)
    with pytest.raises(Refused, match=r"params\.safetensors: chunk 0"):
        export_line(paths.root, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert export_line(paths.root, tmp_path / "ema", ema=True).record.update == 6  # its bytes are sound


def test_a_checkpoint_removed_while_it_is_opened(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest is looked for again; one that was named is not there."""
    paths = line[0]
    real = opening.verify

    def removing(path: Path, **options: object) -> list[str]:
        if path.name == "u6":
            shutil.rmtree(path)
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "verify", removing)
    with pytest.raises(Refused, match="no checkpoint of update 6; there are those of 3"):
        export_line(paths.root, tmp_path / "named", at=6)
    shutil.copytree(paths.checkpoint(3), paths.checkpoint(6))
    assert export_line(paths.root, tmp_path / "newest").record.update == 3


def test_a_removal_after_the_opening_hurts_no_more(line: Line) -> None:
    paths, model = line
    with open_checkpoint(paths) as opened:
        shutil.rmtree(paths.checkpoints)
        read = {name: opened.weights.read(name) for name, _ in model.named_parameters()}
    assert all(torch.equal(read[name], param) for name, param in model.named_parameters())


def test_a_file_of_another_model_is_refused(made: Line, tmp_path: Path) -> None:
    with open_checkpoint(made[0]) as opened:
        groups, label = opened.built.param_groups()[:1], opened.built.layer_label
        layout = opening.Layout.build(groups, label)
    with pytest.raises(Refused, match="expected one tensor of"):
        FlatFile(made[0].checkpoint(6) / "params.safetensors", layout)
    (tmp_path / "x").write_bytes(b"\x10\0\0\0\0\0\0\0no json")
    with pytest.raises(Refused, match="not a checkpoint's tensor"):
        FlatFile(tmp_path / "x", layout)


def test_a_full_disk_leaves_nothing(made: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Folder, name: str, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Folder, "write", full)
    with pytest.raises(DiskFull, match="out: no space left"):
        export_line(made[0].root, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_kill_at_any_moment_leaves_room_for_the_next(made: Line, tmp_path: Path) -> None:
    num = count_operations(lambda: export_line(made[0].root, tmp_path / "whole"))
    files = set(read_export(tmp_path / "whole").files) | {"nstrain.json"}
    for at in range(1, num + 1):
        out = tmp_path / f"out{at}"
        run_killed(partial(export_line, made[0].root, out), at)
        if not out.exists():
            export_line(made[0].root, out)
        assert {path.name for path in out.iterdir()} - {".nstrain-export"} == files


class Killed(BaseException):
    """Ends an export."""


def test_what_a_killed_export_left_is_replaced_and_a_running_one_is_not(tmp_path: Path) -> None:
    out, part = tmp_path / "out", tmp_path / "out.part"
    with pytest.raises(Killed), new_folder(out) as folder:
        folder.write("model.safetensors", [b"half"])
        shutil.copytree(part, tmp_path / "left")
        raise Killed
    (tmp_path / "left").rename(part)
    with new_folder(out) as folder:
        with pytest.raises(Refused, match="another process is writing it"), new_folder(out):
            pass
        folder.write("a", [b"1", b"2"])
    assert [path.name for path in out.iterdir()] == ["a"] and not part.exists()
