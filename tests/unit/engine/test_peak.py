"""The check's estimate of memory against what torch's allocator hands out for the same work on the CPU."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.unit.engine.toys import token_rows
from trainer_core.engine.backends.storage_peak import StoragePeak
from trainer_core.engine.capture_check import check_capture
from trainer_core.engine.flat import flat_state
from trainer_core.models.presets import PRESETS
from trainer_core.models.registry import build


def _allocated(
    name: str, rows: int, length: int, ac: str, config=None, vocab: int | None = None, **state
) -> int:
    """Largest number of bytes that one forward and backward pass held beside the state."""
    vocab = vocab or PRESETS[name].vocab_size
    with torch.device("meta"):
        model = build(name, config, vocab, 0)
    model.to_empty(device="cpu")  # to draw the weights would take longer than the passes
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.detach().zero_()
    flat_state(model, **state)
    ids = torch.from_numpy(token_rows(0, rows, length, vocab))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        loss, _ = model.loss(ids[:, :-1], ids[:, 1:], ac)
        loss.backward()
        del loss
    held = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@pytest.mark.parametrize(
    ("name", "rows", "length", "ac"),
    [
        ("llama-nano-cpu", 8, 32, "none"),
        ("llama-nano-cpu", 8, 32, "full"),
        ("llama-cpu", 8, 128, "none"),
        ("llama-cpu", 8, 128, "full"),
        ("llama-20m", 1, 256, "full"),
    ],
)
def test_peak_of_llama_presets(name: str, rows: int, length: int, ac: str) -> None:
    with torch.device("meta"):
        model = build(name, None, PRESETS[name].vocab_size, 0)
    report = check_capture(model, lambda ids, t: model.loss(ids, t, ac), micro=[(rows, length)])
    (micro,) = (part for part in report.parts if part.part.startswith("micro"))
    allocated = _allocated(name, rows, length, ac)
    assert micro.peak_bytes == pytest.approx(allocated, rel=0.15)
    # Two gradients of the table that is embedding and head are added in place only when nobody looks on.
    table = 4 * PRESETS[name].vocab_size * PRESETS[name].config["width"]
    assert 0.99 * allocated <= micro.peak_bytes <= 1.01 * allocated + table


WIDE = sorted(PRESETS, key=lambda name: PRESETS[name].config["width"])
VOCAB = 512


@pytest.mark.parametrize(
    ("name", "shadow"),
    [(name, None) for name in WIDE]
    + [(name, torch.bfloat16) for name in WIDE if PRESETS[name].config["width"] <= 512],
)
def test_one_block_of_every_preset(name: str, shadow: torch.dtype | None) -> None:
    """Its widths are what a preset adds; more blocks add alike.

    In bfloat16 the narrow ones alone: where a processor lacks it, a wide product takes a minute.
    """
    ac = ("none", "full")[WIDE.index(name) % 2]
    rows, length = 2, 64
    with torch.device("meta"):
        model = build(name, {"layers": 1}, VOCAB, 0)
    report = check_capture(
        model, lambda ids, t: model.loss(ids, t, ac), micro=[(rows, length)], shadow=shadow
    )
    (micro,) = (part for part in report.parts if part.part.startswith("micro"))
    allocated = _allocated(name, rows, length, ac, {"layers": 1}, VOCAB, shadow=shadow)
    assert micro.peak_bytes == pytest.approx(allocated, rel=0.25)


def test_births_and_deaths() -> None:
    peak = StoragePeak()
    outside = torch.ones(1000)
    a = torch.ones(1000)
    peak.observe("make", [], [a])
    peak.observe("view", [a], [a.view(10, 100)])
    peak.observe("split", [], [a[:10], a[10:]])
    peak.observe("in place", [outside], [outside])
    assert peak.peak_bytes == 4096
    assert [(birth.op, birth.num_bytes) for birth in peak.alive()] == [("make", 4096)]
    view = a[5:]
    del a
    b = torch.ones(1)
    peak.observe("make", [outside], [b])
    assert peak.peak_bytes == 4096 + 512
    del view
    assert [birth.num_bytes for birth in peak.alive()] == [512]
    c = torch.ones(2000)
    peak.observe("make", [], [c])
    assert peak.peak_bytes == 512 + 8192
