"""A model package of somebody else, written into a folder: one small family, registered by an entry point."""

from __future__ import annotations

from pathlib import Path

BIGRAM = '''
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from trainer_core.engine.layout import ParamGroup
from trainer_core.models.base import Model
from trainer_core.models.preset import make_preset

PRESETS = (
    make_preset(
        "bigram-cpu", "bigram", 64, {"rope_max_seq_len": 64},
        row_length=16, tokens_per_update=64, rows=4, warmup_tokens=128,
    ),
)


@dataclass(frozen=True)
class Config:
    rope_max_seq_len: int


class Bigram(Model):
    """Scores of the next token by the present one alone."""

    recomputation = ("none", "all")

    def __init__(self, config, vocab_size):
        super().__init__()
        self.config, self.vocab_size = Config(**config), vocab_size
        self.table = nn.Parameter(torch.zeros(vocab_size, vocab_size))

    def loss(self, ids, targets, ac="none"):
        logits = self.logits(ids).flatten(0, 1)
        total = F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        return total, (targets != -100).sum()

    def param_groups(self):
        return [ParamGroup(name="table", decay=False, lr_mult=1.0, params=[("table", self.table)])]

    def layer_label(self, name):
        return name

    def flops_per_token(self, T):
        return 6.0 * self.vocab_size

    def logits(self, ids):
        return F.embedding(ids, self.table)

    def init_state(self, rows):
        return None

    def advance(self, ids, state):
        return self.logits(ids), None


def build(config, vocab_size, seed, dtype):
    return Bigram(config, vocab_size).to(dtype)
'''
"""The module of the family `bigram`."""


def install(folder: Path, module: str, source: str = BIGRAM, *, family: str = "bigram") -> Path:
    """Writes the module and the metadata of an installed distribution beside it, as pip would."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(source)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[nstrain.models]\n{family} = {module}\n")
    return folder


def check_out(folder: Path, module: str, source: str = BIGRAM, *, family: str = "bigram") -> Path:
    """Writes a source tree that was never installed: a pyproject.toml, and the module below src."""
    (folder / "src").mkdir(parents=True)
    (folder / "src" / f"{module}.py").write_text(source)
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{module}"\n[project.entry-points."nstrain.models"]\n{family} = "{module}"\n'
    )
    return folder
