"""The benchmark of the NeuronSpark: equal sizes are compared, what misses a bar, whose time it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from benchmarks.neuronspark import BARS, LENGTH, LLAMAS, ROWS, by_operator, missing, pair, step


@pytest.mark.parametrize("vocab", BARS)
@pytest.mark.parametrize("name", LLAMAS)
def test_both_are_of_one_size(name: str, vocab: int) -> None:
    with torch.device("meta"):
        ours, theirs = (sum(p.numel() for p in model.parameters()) for model in pair(name, vocab))
    assert ours == pytest.approx(theirs, rel=0.02)


def test_what_misses_a_bar() -> None:
    assert missing({("nano-cpu", 512, "ours"): 1.8, ("micro-cpu", 4_096, "plain"): 1.53}) == []
    (problem,) = missing({("nano-cpu", 512, "ours"): 1.97, ("nano-cpu", 4_096, "ours"): 1.55})
    assert problem == "nano-cpu at a vocabulary of 4,096 (head: ours) costs 1.55 of a Llama, bar 1.4"


@pytest.mark.parametrize("of", [0, 1], ids=["neuronspark", "llama"])
def test_both_heads_have_the_same_gradients(of: int) -> None:
    """Ours of the sum over all tokens, the plain one of their mean."""
    torch.set_num_threads(1)
    gradients = []
    for head in ("ours", "plain"):
        model = pair("nano-cpu", 512)[of]
        step(model, 512, head)()
        gradients.append([p.grad for p in model.parameters()])
    for ours, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(ours / (ROWS * LENGTH), plain, atol=1e-6, rtol=1e-3)


def test_time_belongs_to_the_outermost_operator_of_ours() -> None:
    def event(name: str, us: float, parent: object = None) -> SimpleNamespace:
        return SimpleNamespace(name=name, self_cpu_time_total=us, cpu_parent=parent)

    scan = event("GeneratedBackwardFor_nstrain_scan_default", 1.0)
    backward = event(
        "nstrain::scan_backward",
        2.0,
        event("autograd::engine: GeneratedBackwardFor_nstrain_scan_defaultBackward", 0.0),
    )
    events = [
        *(scan, event("aten::bmm", 4.0, event("nstrain::inner", 0.0, scan))),
        *(backward, event("aten::mul", 8.0, backward)),
        event("aten::mm", 16.0),
        event("aten::bmm", 32.0),
        event("aten::topk", 64.0),
        event("_RMSNorm", 128.0),
    ]
    times = by_operator(events, 1)
    assert {name: round(s * 1e6) for name, s in times.items()} == {
        "scan": 15,
        "products of matrices": 48,
        "aten::topk": 64,
        "RMSNorm": 128,
    }
