"""The NeuronSpark in the engine: it learns, also on rounded weights, and has the same bits in each mode."""

import math

import pytest
import torch

from tests.unit.models.small_neuronspark import VOCAB, small, token_ids
from trainer_core.engine.assemble import make_step
from trainer_core.engine.capture_check import check_capture
from trainer_core.engine.step import UpdateScalars
from trainer_core.models.registry import build

SCALARS = UpdateScalars(lr=1e-2, weight_decay=0.1, ema_weight=0.1)
T = 24


def _repeats(seed: int) -> torch.Tensor:
    """Rows in which a token tells the next: successive multiples of a factor."""
    starts = torch.randint(1, VOCAB, (4, 1), generator=torch.Generator().manual_seed(seed))
    factors = torch.tensor([pow(3, t, VOCAB) for t in range(T + 1)])
    return starts * factors % VOCAB


def _train(precision: str, ac: str = "none", updates: int = 12, **config):
    model = small(**config)
    state, step = make_step(model, precision=precision, ema=True, recompute={T: ac}, seed=3)
    losses = []
    for i in range(updates):
        result = step.update([_repeats(i)], SCALARS)
        losses.append(result.loss)
    return model, state, losses


@pytest.mark.parametrize("release", ["graded", "binary"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_learns(precision: str, release: str) -> None:
    _, state, losses = _train(precision, release=release)
    assert losses[0] == pytest.approx(math.log(VOCAB), rel=0.25)
    assert losses[-1] < 0.6 * losses[0]
    assert int(state.counters[0]) == 12 and not state.counters[1:].any()


def test_after_a_hundred_updates_at_a_high_rate_rounded_weights_have_the_same_loss() -> None:
    """None of them is skipped."""
    ends = []
    for precision in ("fp32", "bf16"):
        _, state, losses = _train(precision, updates=100)
        assert state.counters.tolist() == [100, 0, 0]
        ends.append(sum(losses[-10:]) / 10)
    assert ends[1] == pytest.approx(ends[0], abs=0.01)
    assert ends[0] < 0.1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_gives_the_same_bits_in_every_mode(precision: str) -> None:
    first = _train(precision, updates=2)[1].P
    for ac in ("none", "scan", "dendritic", "hippocampal", "full"):
        assert torch.equal(first, _train(precision, ac, updates=2)[1].P), ac


def test_beside_rounded_weights_neurons_stay_exact_and_the_stream_is_wide() -> None:
    model, _, _ = _train("bf16", updates=1)
    exact = {"conv", "norm", "neuron"}
    for group in model.param_groups():
        assert {p.dtype for _, p in group.params} == {
            torch.float32 if group.name in exact else torch.bfloat16
        }
    streams: list[torch.dtype] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda _, __, out: streams.append(out.dtype))
    inner: dict[str, torch.dtype] = {}
    with torch.no_grad():
        model.hidden(token_ids(8)[:, :-1], note=lambda i, name, value: inner.setdefault(name, value.dtype))
        found = model.loss(token_ids(8)[:, :-1], token_ids(8)[:, 1:])[0]
    assert set(streams) == {torch.float32}
    wide = {"dt", "A", "step", "clock", "log_write", "match", "pi", "novelty", "gain", "trace_dt", "trace_A"}
    assert {inner[name] for name in wide} == {torch.float32}
    assert found.dtype == torch.float32


def test_a_narrow_residual_stream_is_a_setting() -> None:
    model = small(residual_fp32=False)
    make_step(model, precision="bf16", recompute={T: "none"})
    with torch.no_grad():
        assert model._embed(token_ids(3)).dtype == torch.bfloat16
        assert model.logits(token_ids(3)).isfinite().all()


def test_rounded_weights_change_the_loss_little() -> None:
    ids = token_ids(60)
    model = small()
    with torch.no_grad():
        exact = float(model.loss(ids[:, :-1], ids[:, 1:])[0]) / 120
    make_step(model, precision="bf16", recompute={60: "none"})
    with torch.no_grad():
        rounded = float(model.loss(ids[:, :-1], ids[:, 1:])[0]) / 120
        states = model.init_state(2)
        parts = []
        for part in ids[:, :-1].split([50, 1, 9], 1):
            scores, states = model.advance(part, states)
            parts.append(scores)
        apart = (torch.cat(parts, 1).float() - model.logits(ids[:, :-1]).float()).abs().max()
    assert rounded == pytest.approx(exact, abs=0.02)
    assert apart < 0.1


def test_a_note_sees_every_inner_quantity_and_changes_nothing() -> None:
    model, ids = small(), token_ids(20)[:, :-1]
    seen: dict[int, dict[str, tuple[int, ...]]] = {}

    def note(layer: int, name: str, value: torch.Tensor) -> None:
        seen.setdefault(layer, {})[name] = tuple(value.shape)

    assert torch.equal(model.hidden(ids, note=note), model.hidden(ids))
    assert seen[0] == seen[2] == {"dt": (2, 20, 4), "A": (4,), "fired": (2, 20, 24)}
    assert (
        seen[1]
        == seen[3]
        == {
            "trace_dt": (2, 20, 3),
            "trace_A": (3,),
            "gate_fired": (2, 20, 10),
            "q": (2, 4, 20, 4),
            "k": (2, 2, 20, 4),
            "step": (2, 4, 20),
            "clock": (2, 4, 20),
            "log_write": (2, 2, 20),
            "match": (2, 4, 20),
            "pi": (2, 4, 20),
            "novelty": (2, 4, 20),
            "gain": (2, 4, 20),
            "slots": (40, 2, 3),
            "slot_weights": (40, 2, 3),
            "pkm_gate": (2, 20, 1),
            "ffn_in_fired": (2, 20, 16),
            "ffn_gate_fired": (2, 20, 20),
            "ffn_up_fired": (2, 20, 20),
        }
    )


def test_nothing_is_copied_where_a_token_is_new() -> None:
    """The scores do not show it: without an event that matches there is nothing to add pi to."""
    model, ids = small(), torch.tensor([[5, 3, 5, 5, 3, 7]])
    noted: dict[str, torch.Tensor] = {}
    model.hidden(ids, note=lambda i, name, value: noted.update({name: value}))
    assert (noted["pi"][0] > 0).tolist() == [[False, False, True, True, True, False]] * 4


def _traced(ac: str, release: str) -> tuple[int, int]:
    """Operators and peak memory of a traced micro-batch."""
    with torch.device("meta"):
        model = build("nano-cpu", {"layers": 2, "interval": 2, "release": release}, 64, 0)

    def loss(ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return model.loss(ids, targets, ac)

    report = check_capture(model, loss, micro=[(4, 65)])
    assert report.problems == ()
    return report.parts[0].num_ops, report.parts[0].peak_bytes


def test_each_mode_runs_again_what_it_names() -> None:
    """Of a dendritic and a hippocampal layer: more operators, and less memory."""
    ops, peaks = {}, {}
    for ac in ("none", "scan", "dendritic", "hippocampal", "full"):
        ops[ac], peaks[ac] = _traced(ac, "graded")
    assert ops["none"] < ops["scan"] < ops["dendritic"] < ops["hippocampal"] < ops["full"]
    assert ops["full"] - ops["hippocampal"] == ops["dendritic"] - ops["none"]
    assert max(peaks["dendritic"], peaks["scan"], peaks["hippocampal"]) < peaks["none"]
    assert peaks["full"] <= min(peaks["dendritic"], peaks["hippocampal"])


def test_a_binary_release_can_be_captured() -> None:
    assert _traced("full", "binary")[0] > 400
