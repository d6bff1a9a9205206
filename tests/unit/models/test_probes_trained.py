"""On a trained nano NeuronSpark every probe is finite, in its range, and what loops over tokens give."""

import math

import pytest
import torch
from torch import Tensor

from tests.unit.models.plain_neuronspark import plain_logits
from tests.unit.models.plain_probes import probed_in_loops
from trainer_core.engine.assemble import make_step
from trainer_core.engine.step import UpdateScalars
from trainer_core.models.neuronspark.model import NeuronSpark
from trainer_core.models.neuronspark.probes import attention
from trainer_core.models.neuronspark.probes.tokens import Tokens
from trainer_core.models.registry import build

VOCAB, T, EOS = 48, 32, 0


def _documents(seed: int, rows: int, length: int) -> Tensor:
    """Successive multiples of a number, a new one after each EOS."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (rows, 1), generator=g) * 5 ** torch.arange(12) % (VOCAB - 1) + 1
    ids = ids.repeat(1, length // 12 + 1)[:, :length]
    ids[torch.rand(rows, length, generator=g) < 0.08] = EOS
    return ids


@pytest.fixture(scope="module")
def trained() -> NeuronSpark:
    model = build("nano-cpu", None, VOCAB, 0)
    assert isinstance(model, NeuronSpark)
    _, step = make_step(model, precision="fp32", recompute={T: "none"})
    scalars = UpdateScalars(lr=3e-3, weight_decay=0.1, ema_weight=0.0)
    losses = [step.update([_documents(i, 2, T + 1)], scalars).loss for i in range(30)]
    assert losses[-1] < 0.9 * losses[0]
    return model


POSITIVE = ("tau", "ratio")
SHARES = (
    *("retention", "firing", "write", "copy_pi", "novelty", "pkm_slots_used", "pkm_gate", "rope_ext"),
    *("attn_dist", "attn_beyond"),
)


def _in_range(name: str, value: float, length: int) -> bool:
    last = name.rpartition("/")[2]
    if last == "boundaries":
        return value == int(value) and value >= 0
    if last == "read_gain":
        return 0 < value < 2
    if last == "pkm_entropy":
        return 0 <= value <= math.log(8)
    if last.startswith("attn_entropy"):
        return 0 <= value <= math.log(length)
    if last.startswith("attn_mean_log2"):
        return 0 <= value <= math.log2(length)
    if any(part in last for part in POSITIVE):
        return value > 0
    assert any(part in last for part in SHARES), name
    return 0 <= value <= 1 + 1e-6


@pytest.mark.parametrize("length", [T, 3 * T])
def test_every_number_is_in_its_range(trained: NeuronSpark, length: int) -> None:
    ids = _documents(99, 2, length)
    found = trained.probe(ids, train_length=T, eos=EOS)
    assert [name for name, value in found.items() if not math.isfinite(value)] == []
    assert [(name, v) for name, v in found.items() if not _in_range(name, v, length)] == []
    assert found["dendritic/boundaries"] == int((ids[:, :-1] == EOS).sum()) > 0
    for kind in ("", "layer03/", "layer07/"):
        bins = [v for name, v in found.items() if name.startswith(f"hippocampal/{kind}attn_dist_bin")]
        assert len(bins) == 1 + (length - 1).bit_length() and sum(bins) == pytest.approx(1, abs=1e-5)
    assert (found["hippocampal/attn_beyond_train_max"] > 0) == (length > T)
    assert ("dendritic/retention_seg2_max" in found) == (length > T)


@pytest.fixture(scope="module")
def exact(trained: NeuronSpark) -> NeuronSpark:
    """The trained model in float64."""
    model = build("nano-cpu", None, VOCAB, 0, torch.float64)
    assert isinstance(model, NeuronSpark)
    model.load_state_dict({name: value.double() for name, value in trained.state_dict().items()})
    return model


ROW = _documents(99, 1, 64)


@pytest.mark.parametrize("train_length", [64, 24], ids=["a row of the training", "a long row"])
def test_every_number_on_64_tokens_is_that_of_loops(
    trained: NeuronSpark, exact: NeuronSpark, train_length: int
) -> None:
    loops = probed_in_loops(exact, ROW, train_length, EOS)
    assert loops["dendritic/boundaries"] > 0 and len(loops) > 200
    assert exact.probe(ROW, train_length=train_length, eos=EOS) == pytest.approx(loops, rel=1e-9, abs=1e-12)
    assert trained.probe(ROW, train_length=train_length, eos=EOS) == pytest.approx(loops, rel=1e-5, abs=1e-7)


def test_the_streams_that_the_loops_start_from_are_those_of_the_equations(exact: NeuronSpark) -> None:
    with torch.no_grad():
        wanted = plain_logits(ROW, dict(exact.named_parameters()), exact.config)
        torch.testing.assert_close(exact.logits(ROW), wanted, atol=1e-11, rtol=0)


def test_names_of_a_layer_are_names_of_the_model(trained: NeuronSpark) -> None:
    found = trained.probe(_documents(7, 1, 2 * T), train_length=T, eos=EOS)
    whole = {name for name in found if "/layer" not in name}
    parts = {
        name.replace(f"layer{i:02d}/", "")
        for i in range(8)
        for name in found
        if f"layer{i:02d}/" in name and "_head" not in name
    }
    assert whole - parts == {"dendritic/boundaries", "hippocampal/rope_ext_pairs_frac"}
    assert parts <= whole


def test_probing_changes_nothing(trained: NeuronSpark) -> None:
    ids = _documents(5, 1, T)
    before = {name: param.clone() for name, param in trained.named_parameters()}
    with torch.no_grad():
        logits = trained.logits(ids)
    first = trained.probe(ids, train_length=T, eos=EOS)
    assert first == trained.probe(ids, train_length=T, eos=EOS)
    assert all(torch.equal(before[name], param) for name, param in trained.named_parameters())
    with torch.no_grad():
        assert torch.equal(logits, trained.logits(ids))


def test_weights_part_by_part_are_those_at_once(trained: NeuronSpark) -> None:
    ids, notes = _documents(3, 1, 50), {}
    with torch.no_grad():
        trained.hidden(ids, note=lambda i, name, value: notes.update({name: value}) if i == 3 else None)
    tokens = Tokens(ids=ids, eos=EOS, train_length=T, attention=True)
    parts = list(attention.weights(notes, tokens, held=4 * 50 * 7))
    assert [first for first, _ in parts] == [18, 25, 32, 39, 46]
    assert max(w.numel() for _, w in parts) <= 4 * 50 * 7
    whole, cut = (attention.gather(notes, tokens, held=held) for held in (1 << 24, 4 * 50 * 7))
    for name, sums in whole.items():
        assert torch.allclose(sums, cut[name], rtol=1e-5, atol=1e-6), name


def test_rounded_weights_can_be_probed() -> None:
    model = build("nano-cpu", {"layers": 2, "interval": 2}, VOCAB, 0)
    make_step(model, precision="bf16", recompute={T: "none"})
    found = model.probe(_documents(3, 1, 2 * T), train_length=T, eos=EOS)
    assert [(name, v) for name, v in found.items() if not _in_range(name, v, 2 * T)] == []
