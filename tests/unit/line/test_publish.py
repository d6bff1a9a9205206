"""What is published was durable first: write, fsync, rename, fsync of the directory, in this order."""

import torch

from tests.tools.faults import trace
from trainer_core.line.files import write_json
from trainer_core.line.paths import LinePaths
from trainer_core.train.checkpoint import write_checkpoint


def test_a_replaced_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    rows = trace(lambda: write_json(path, {"a": 1}), monkeypatch)
    names = [name for name, _, _ in rows]
    assert names == ["open", "fsync", "replace", "fsync"]
    assert rows[1][2] == path.stat().st_size, "fsynced before its bytes were written"
    assert rows[3][1] == str(tmp_path)


def test_a_checkpoint(tmp_path, monkeypatch):
    paths = LinePaths(tmp_path)
    state = {"update": 1, "tokens": 1, "position": {"cycle": 0, "part": 0, "row": 0}, "kept": None}
    tensors = {"params": [torch.zeros(64)], "exp_avg": [torch.zeros(64)]}
    rows = trace(lambda: write_checkpoint(paths, 1, tensors, state), monkeypatch)
    order = [(name, path) for name, path, _ in rows]
    part = str(paths.checkpoint(1)) + ".part"
    renamed = order.index(("rename", part))
    files = ["params.safetensors", "exp_avg.safetensors", "state.json", "manifest.json"]
    synced = [path for name, path in order[:renamed] if name == "fsync"]
    assert synced == [f"{part}/{name}" for name in files] + [part], "the manifest is last, then the directory"
    for name in files:
        wrote = max(i for i, row in enumerate(order) if row == ("write", f"{part}/{name}"))
        assert wrote < order.index(("fsync", f"{part}/{name}"))
    assert order[renamed + 1] == ("fsync", str(paths.checkpoints))
    assert order[-1] == ("fsync", str(paths.checkpoints)), "then the hint `latest`, the same way"
