"""Every probe equals loops over tokens in plain Python; what is not defined is absent."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.models.plain_probes import probed_in_loops
from tests.unit.models.small_neuronspark import disturbed, small, token_ids
from trainer_core.models.neuronspark.model import NeuronSpark
from trainer_core.models.neuronspark.probes import retention
from trainer_core.models.neuronspark.probes.observe import Watch, subjects_of
from trainer_core.models.neuronspark.probes.tokens import Tokens

EOS = 3


def _model(**config: Any) -> NeuronSpark:
    model = disturbed(small(dtype=torch.float64, **config))
    if model.config.interval > 1:
        model.layers[0].A_log.data[1] -= 8  # keeps more than half of 32,768 tokens
    return model


def _rows(T: int, rows: int, *ends: tuple[int, int]) -> Tensor:
    """Random tokens, none of which ends a document but those at (row, token)."""
    ids = token_ids(T, rows)[:, :-1]
    ids[ids == EOS] = EOS + 1
    for row, at in ends:
        ids[row, at] = EOS
    return ids


def _check(model: NeuronSpark, ids: Tensor, train_length: int) -> dict[str, float]:
    found = model.probe(ids, train_length=train_length, eos=EOS)
    assert found == pytest.approx(probed_in_loops(model, ids, train_length, EOS), rel=1e-9, abs=1e-12)
    return found


def test_rows_of_the_training_length() -> None:
    ids = _rows(64, 3, (0, 20), (0, 21), (1, 0), (1, 62), (2, 63))
    found = _check(_model(), ids, 64)
    assert found["dendritic/boundaries"] == 4  # the last token of the third row ends the row, too
    assert not any("seg" in name for name in found)
    assert {found[f"hippocampal/layer0{i}/attn_beyond_train_head{h}"] for i in (1, 3) for h in range(4)} == {
        0
    }


def test_long_rows() -> None:
    found = _check(_model(), _rows(64, 5, (0, 24), (4, 23)), 24)
    assert found["dendritic/retention_seg2_p50"] == found["dendritic/retention_p50"]
    assert "dendritic/layer02/firing_seg2" in found and "dendritic/firing_seg3" not in found
    assert 0 < found["hippocampal/attn_beyond_train_p50"] < 1


def test_a_binary_release() -> None:
    _check(_model(release="binary"), _rows(20, 2, (1, 7)), 12)


def test_rows_shorter_than_the_training_length() -> None:
    _check(_model(width=24), _rows(20, 2, (1, 7)), 64)


def test_a_table_that_layers_share_counts_once() -> None:
    found = _check(_model(pkm_shared=True), _rows(3, 1), 8)
    used = [found[f"hippocampal/{layer}pkm_slots_used"] for layer in ("", "layer01/", "layer03/")]
    assert max(used[1:]) <= used[0] <= sum(used[1:]) and used[0] != (used[1] + used[2]) / 2


@pytest.mark.parametrize("eos", [(), ((0, 4),)])
def test_without_a_boundary_there_is_nothing_at_it(eos: tuple[tuple[int, int], ...]) -> None:
    found = _check(_model(), _rows(5, 1, *eos), 5)
    assert found["dendritic/boundaries"] == 0
    assert [name for name in found if "boundary" in name] == []


def test_where_all_is_near_a_boundary_there_is_no_elsewhere() -> None:
    found = _check(_model(), _rows(2, 1, (0, 0)), 4)
    assert [name for name in found if "boundary" in name and "layer" not in name] == [
        "dendritic/boundary_retention_p50",
        "dendritic/boundary_retention_max",
    ]


def test_one_token_has_no_retention() -> None:
    found = _check(_model(), _rows(1, 2, (1, 0)), 8)
    assert not any("/retention_" in name or "/tau" in name for name in found)
    assert found["hippocampal/attn_dist_bin0"] == 1 and found["hippocampal/attn_entropy_max"] == 0


def test_segments_of_one_token() -> None:
    found = _check(_model(), _rows(3, 1, (0, 1)), 1)
    assert found["dendritic/retention_seg0_p50"] == 1


def test_one_kind_of_layer_has_no_numbers_of_the_other() -> None:
    ids = _rows(6, 1)
    assert {n.partition("/")[0] for n in _check(_model(interval=5), ids, 6)} == {"dendritic"}
    assert {n.partition("/")[0] for n in _check(_model(interval=1, layers=1), ids, 6)} == {"hippocampal"}


def test_no_rows_have_no_numbers() -> None:
    assert _model().probe(_rows(4, 2)[:0], train_length=4, eos=EOS) == {}


def test_what_is_not_finite_is_absent() -> None:
    model = _model()
    with torch.no_grad():
        model.layers[0].A_log[1] = -math.inf  # forgets nothing
        model.layers[2].dt_bias.fill_(math.nan)
    found = model.probe(_rows(8, 1, (0, 3)), train_length=8, eos=EOS)
    assert all(map(math.isfinite, found.values()))
    assert found["dendritic/layer00/retention_max"] == 1 and "dendritic/layer00/tau_max" not in found
    assert "dendritic/layer00/tau_p50" in found and "dendritic/layer02/tau_p50" not in found


def test_the_long_retention_is_over_32768_tokens_at_the_mean_step() -> None:
    half = math.log(2) / 32_768
    one = torch.ones(4, dtype=torch.float64)
    decay = 10 * half * torch.tensor([0.5, 0.9999, 1.0001, 2.0], dtype=torch.float64)
    sums = {"decay": decay, "tokens": 10 * one, "exponent": decay[None], "later": 9 * one, "rows": one}
    assert float(retention.values(sums)["retention32k_frac_gt_0.5"]) == 0.5


def test_what_is_never_written_has_a_tag_of_zero() -> None:
    model = small()
    with torch.no_grad():
        for i in (1, 3):
            model.layers[i].memory.write_bias.fill_(-200)
    found = model.probe(_rows(8, 1), train_length=8, eos=EOS)
    tags = [value for name, value in found.items() if "/write_" in name]
    assert len(tags) == 2 * 3 + 2 * 2 and 0 <= min(tags) <= max(tags) < 1e-11


def test_rows_of_one_pass_are_those_of_two() -> None:
    model, ids = _model(), _rows(12, 2, (0, 3), (1, 7))
    passes = [_tokens(ids)], [_tokens(ids[:1]), _tokens(ids[1:])]
    subjects = subjects_of(model.config)
    layers = [subjects[kind] for kind in ("dendritic", "hippocampal") * 2]
    found = []
    for several in passes:
        watch = Watch(layers)
        with torch.no_grad():
            for tokens in several:
                watch.run(model, tokens)
        found.append(
            [
                {name: float(value) for name, value in subject.values(sums).items()}
                for i, layer in enumerate(layers)
                for subject, sums in zip(layer, watch.sums[i], strict=True)
            ]
        )
    for together, apart in zip(*found, strict=True):
        assert together == pytest.approx(apart, rel=1e-12, nan_ok=True)


def _tokens(ids: Tensor) -> Tokens:
    return Tokens(ids=ids, eos=EOS, train_length=5, attention=True)


def test_rows_add_up_whatever_their_order() -> None:
    ids = _rows(12, 2, (0, 3))
    model = _model()
    both = model.probe(ids, train_length=12, eos=EOS)
    turned = model.probe(ids.flip(0), train_length=12, eos=EOS)
    same = {name: value for name, value in both.items() if "attn" not in name}
    assert {name: turned[name] for name in same} == pytest.approx(same, rel=1e-12)
    assert {name: turned[name] for name in both} != pytest.approx(both, rel=1e-3)  # attention: first row only
