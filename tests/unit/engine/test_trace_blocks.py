"""A trace goes through a few of the blocks that are done alike, and finds the memory of all of them."""

import pytest
import torch

from trainer_core.engine.capture_check import PartReport, check_capture
from trainer_core.kernels.attention import block_causal
from trainer_core.kernels.conv import tiled as conv
from trainer_core.kernels.pool_read import blocks as pool
from trainer_core.kernels.scan import layout as scan
from trainer_core.kernels.target import worth_doing
from trainer_core.models.registry import build

MODULES = (block_causal, conv, pool, scan)
CONFIGS = {
    "nano-cpu": {"layers": 2, "interval": 2, "rope_max_seq_len": 2048},
    "llama-cpu": {"layers": 1, "rope_max_seq_len": 2048},
}


def test_the_first_and_the_last_two() -> None:
    meta = torch.empty(0, device="meta")
    assert worth_doing([1, 2, 3, 4, 5], meta) == [1, 4, 5]
    assert worth_doing([1, 2, 3], meta) == [1, 2, 3]
    assert worth_doing([1, 2, 3, 4, 5], torch.empty(0)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("rows", "length"), [(1, 2000), (9, 513)])
@pytest.mark.parametrize("ac", ["none", "full"])
def test_fewer_operators_and_the_same_memory(
    name: str, rows: int, length: int, ac: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced() -> PartReport:
        with torch.device("meta"):
            model = build(name, CONFIGS[name], 64, 0)
        report = check_capture(model, lambda ids, t: model.loss(ids, t, ac), micro=[(rows, length)])
        assert report.problems == ()
        return report.parts[0]

    few = traced()
    for module in MODULES:
        monkeypatch.setattr(module, "worth_doing", lambda blocks, like: blocks)
    every = traced()
    assert few.peak_bytes == every.peak_bytes
    assert few.num_ops < every.num_ops
