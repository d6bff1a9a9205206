"""Reading checkpoints: those of every writer there was, and what each kind of damage is called."""

import hashlib
import json

import pytest
import torch

from trainer_core.errors import Refused
from trainer_core.line import checkpoints as module
from trainer_core.line.checkpoints import CHUNK_BYTES, verify
from trainer_core.line.paths import LinePaths
from trainer_core.train.resume import find_resume_point, load_tensors

VALUES = torch.arange(3000, dtype=torch.float32)
HEADER = b'{"params":{"dtype":"F32","shape":[3000],"data_offsets":[0,12000]}}'
STATE = {
    "update": 4,
    "tokens": 40,
    "position": {"cycle": 0, "part": 0, "row": 4},
    "kept": None,
    "data": {},
}


def written(tmp_path, algorithm="blake2b", chunk=CHUNK_BYTES, **entry):
    """A checkpoint byte by byte, with a digest of each whole file as the first writers had it."""
    paths = LinePaths(tmp_path)
    folder = paths.checkpoint(4)
    folder.mkdir(parents=True)
    header = HEADER + b" " * (-len(HEADER) % 8)
    contents = {
        "params.safetensors": len(header).to_bytes(8, "little") + header + VALUES.numpy().tobytes(),
        "state.json": json.dumps(STATE).encode(),
    }
    files = {}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        parts = [content[start : start + chunk] for start in range(0, len(content), chunk)]
        files[name] = {
            "bytes": len(content),
            "digest": hashlib.new(algorithm, content).hexdigest(),
            "chunks": [hashlib.new(algorithm, part).hexdigest() for part in parts],
        }
    files["params.safetensors"] |= entry
    manifest = {"format": "checkpoint/1", "algorithm": algorithm, "chunk_bytes": chunk, "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return paths, folder


@pytest.mark.parametrize("algorithm", ["blake2b", "sha256"])
@pytest.mark.parametrize("chunk", [CHUNK_BYTES, 5000, 4024])
def test_a_checkpoint_with_digests_of_whole_files_resumes(tmp_path, algorithm, chunk):
    paths, _ = written(tmp_path, algorithm, chunk)
    point = find_resume_point(paths)
    assert point is not None and point.info.update == 4
    live = {"params": torch.zeros(3000)}
    load_tensors(point.info.path, live)
    assert live["params"].equal(VALUES)


def test_a_digest_of_the_whole_file_is_compared_too(tmp_path):
    _, folder = written(tmp_path, digest="0" * 128)
    assert verify(folder) == [f"{folder / 'params.safetensors'}: does not match its digest"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"bytes": 12_000}, "not the 12000 bytes"),
        ({"bytes": 12_081}, "not the 12081 bytes"),
        ({"chunks": []}, "not the 12080 bytes"),
        ({"chunks": None}, "unreadable"),
        ({"bytes": "many"}, "unreadable"),
    ],
)
def test_a_manifest_that_is_wrong_about_a_file_is_damage(tmp_path, entry, said):
    paths, folder = written(tmp_path, **entry)
    assert (folder / "params.safetensors").stat().st_size == 12_080
    (problem,) = verify(folder)
    assert said in problem
    with pytest.raises(Refused, match="no sound checkpoint is left"):
        find_resume_point(paths)


@pytest.mark.parametrize("value", ["no-such-hash", "", "../../x"])
def test_an_unknown_algorithm_is_said(tmp_path, value):
    _, folder = written(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"algorithm": value}))
    (problem,) = verify(folder)
    assert "manifest.json: unreadable" in problem


@pytest.mark.parametrize("size", [0, -1])
def test_chunks_without_a_size_are_damage_and_read_nothing(tmp_path, size):
    _, folder = written(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"chunk_bytes": size}))
    assert len(verify(folder)) == 2


def test_slices_and_threads_do_not_change_what_is_found(tmp_path, monkeypatch):
    _, folder = written(tmp_path, chunk=1000)
    with open(folder / "params.safetensors", "r+b") as file:
        file.seek(7_654)
        file.write(b"\xff")
    found = []
    for slice_bytes in (64, 999, 1000, 1 << 20):
        monkeypatch.setattr(module, "SLICE_BYTES", slice_bytes)
        found += [verify(folder, threads=threads) for threads in (1, 3)]
    assert (
        found
        == [[f"{folder / 'params.safetensors'}: chunk 7 (bytes from 7000) does not match its digest"]] * 8
    )
