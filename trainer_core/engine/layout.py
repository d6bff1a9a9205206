"""Where each parameter lies in the flat buffers: ordered segments (group x layer), aligned, with a digest.

Owns offsets and names, never tensors' contents. Every parameter starts on a 1024-element block, so a block of
the norm never spans two parameters, and a group is one contiguous range, so an update is one pass per group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from trainer_core.kernels.grad_norm import BLOCK, Segments

TOTAL_MULTIPLE = BLOCK * 8
"""The total is padded to this, so that up to 8 ranks can own equal shares of whole blocks."""


@dataclass(frozen=True, kw_only=True)
class ParamGroup:
    """Parameters of a model that the optimizer treats alike."""

    name: str
    """Name of the group, unique in the model."""
    decay: bool
    """Whether weight decay applies."""
    lr_mult: float
    """Factor on the learning rate."""
    params: Sequence[tuple[str, nn.Parameter]]
    """Full name in the module and parameter, in the module's order."""
    rounded: bool = True
    """Whether the model computes on a narrow shadow of them, where the state has one, or on P itself."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Place of one parameter."""

    name: str
    """Full name in the module."""
    shape: tuple[int, ...]
    """Shape of the parameter."""
    offset: int
    """First element in the flat buffers, a multiple of BLOCK."""
    group: str
    """Name of its group."""
    label: str
    """Layer label of its segment."""

    @property
    def numel(self) -> int:
        """Elements of the parameter without padding."""
        size = 1
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Contiguous range of the parameters of one group in one layer."""

    group: str
    """Name of the group."""
    label: str
    """Layer label."""
    start: int
    """First element."""
    end: int
    """One past the last element, padding included."""


@dataclass(frozen=True, kw_only=True)
class GroupRange:
    """Contiguous range of one parameter group."""

    name: str
    """Name of the group."""
    decay: bool
    """Whether weight decay applies."""
    lr_mult: float
    """Factor on the learning rate."""
    start: int
    """First element."""
    end: int
    """One past the last element, padding included."""
    rounded: bool = True
    """Whether a shadow stands for its parameters."""


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The order of all parameters in one flat buffer."""

    slots: tuple[Slot, ...]
    """Every parameter, by offset."""
    segments: tuple[Segment, ...]
    """Every (group, layer) range, by offset; they cover [0, used)."""
    groups: tuple[GroupRange, ...]
    """Every group, by offset; they cover [0, used)."""
    total: int
    """Elements of a flat buffer, padding included."""

    @classmethod
    def build(cls, groups: Sequence[ParamGroup], layer_label: Callable[[str], str]) -> Layout:
        """Lays the groups out one after another, and in each the layers in the order of first appearance."""
        slots: list[Slot] = []
        segments: list[Segment] = []
        ranges: list[GroupRange] = []
        offset = 0
        for group in groups:
            assert group.params, f"parameter group {group.name!r} is empty"
            first = offset
            by_label: dict[str, list[tuple[str, nn.Parameter]]] = {}
            for name, param in group.params:
                by_label.setdefault(layer_label(name), []).append((name, param))
            for label, members in by_label.items():
                start = offset
                for name, param in members:
                    shape = tuple(param.shape)
                    slots.append(Slot(name=name, shape=shape, offset=offset, group=group.name, label=label))
                    offset += _up(param.numel(), BLOCK)
                segments.append(Segment(group=group.name, label=label, start=start, end=offset))
            ranges.append(
                GroupRange(
                    name=group.name,
                    decay=group.decay,
                    lr_mult=group.lr_mult,
                    start=first,
                    end=offset,
                    rounded=group.rounded,
                )
            )
        names = [slot.name for slot in slots]
        assert len(set(names)) == len(names), "a parameter is in two groups"
        assert len({r.name for r in ranges}) == len(ranges), "two groups have one name"
        return cls(
            slots=tuple(slots),
            segments=tuple(segments),
            groups=tuple(ranges),
            total=_up(offset, TOTAL_MULTIPLE),
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Layer labels in the order of first appearance."""
        return tuple(dict.fromkeys(segment.label for segment in self.segments))

    @property
    def norm_segments(self) -> Segments:
        """The segments in blocks of the norm, with the index of their label in `labels`."""
        number = {label: i for i, label in enumerate(self.labels)}
        return Segments(
            bounds=tuple((s.start // BLOCK, s.end // BLOCK) for s in self.segments),
            labels=tuple(number[s.label] for s in self.segments),
        )

    @property
    def num_parameters(self) -> int:
        """Elements without padding."""
        return sum(slot.numel for slot in self.slots)

    @property
    def digest(self) -> str:
        """sha256 of names, shapes, offsets, groups and total: equal digests read each other's buffers."""
        described = {
            "slots": [[s.name, list(s.shape), s.offset, s.group, s.label] for s in self.slots],
            "groups": [[g.name, g.decay, float(g.lr_mult).hex(), g.start, g.end] for g in self.groups],
            "total": self.total,
        }
        text = json.dumps(described, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
