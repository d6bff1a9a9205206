"""Offsets, alignment, order and digest of the flat layout."""

import pytest
import torch
from torch import nn

from trainer_core.engine.layout import BLOCK, TOTAL_MULTIPLE, Layout, ParamGroup


def _param(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def _label(name: str) -> str:
    return name.split(".")[0]


def _groups(**changes) -> list[ParamGroup]:
    proj = [("l0.q", _param(40, 40)), ("l1.q", _param(8, 8)), ("l0.k", _param(1, 1024))]
    norm = [("l0.g", _param(40)), ("l1.g", _param(40))]
    first = {"name": "proj", "decay": True, "lr_mult": 1.0, "params": proj} | changes
    return [ParamGroup(**first), ParamGroup(name="norm", decay=False, lr_mult=1.0, params=norm)]


def test_each_parameter_starts_on_a_block_and_nothing_overlaps() -> None:
    layout = Layout.build(_groups(), _label)
    end = 0
    for slot in layout.slots:
        assert slot.offset % BLOCK == 0
        assert slot.offset >= end
        end = slot.offset + slot.numel
    assert end <= layout.total
    assert layout.total % TOTAL_MULTIPLE == 0
    assert layout.num_parameters == 40 * 40 + 64 + 1024 + 80


def test_segments_are_group_by_layer_and_cover_the_groups() -> None:
    layout = Layout.build(_groups(), _label)
    assert [slot.name for slot in layout.slots] == ["l0.q", "l0.k", "l1.q", "l0.g", "l1.g"]
    assert [(s.group, s.label, s.start, s.end) for s in layout.segments] == [
        ("proj", "l0", 0, 3 * BLOCK),
        ("proj", "l1", 3 * BLOCK, 4 * BLOCK),
        ("norm", "l0", 4 * BLOCK, 5 * BLOCK),
        ("norm", "l1", 5 * BLOCK, 6 * BLOCK),
    ]
    assert [(g.name, g.start, g.end) for g in layout.groups] == [
        ("proj", 0, 4 * BLOCK),
        ("norm", 4 * BLOCK, 6 * BLOCK),
    ]
    assert layout.labels == ("l0", "l1")


def test_digest_is_stable_and_sees_every_change() -> None:
    digests = [
        Layout.build(groups, _label).digest
        for groups in (
            _groups(),
            _groups(name="other"),
            _groups(decay=False),
            _groups(lr_mult=2.0),
            _groups(params=[("l0.q2", _param(40, 40))]),
            _groups(params=[("l0.q", _param(40, 40))]),
            _groups(params=[("l0.q", _param(1600))]),
            _groups(params=[("l0.k", _param(1, 1024)), ("l1.q", _param(8, 8)), ("l0.q", _param(40, 40))]),
            _groups()[::-1],
        )
    ]
    assert len(set(digests)) == len(digests)
    assert Layout.build(_groups(), _label).digest == digests[0]
    assert Layout.build(_groups(), lambda name: "all").digest != digests[0]


def test_a_parameter_in_two_groups_is_our_bug() -> None:
    groups = _groups()
    twice = ParamGroup(name="again", decay=True, lr_mult=1.0, params=groups[0].params)
    with pytest.raises(AssertionError, match="two groups"):
        Layout.build([*groups, twice], _label)
