"""GPT-2 as transformers' GPT2LMHeadModel, whose names and matrices [inputs, outputs] ours has too."""

from __future__ import annotations

from trainer_core.export.forms.form import Form
from trainer_core.models.base import Model
from trainer_core.models.gpt2 import GPT2


def form(model: Model) -> Form:
    """The form of a GPT-2."""
    assert isinstance(model, GPT2)
    c = model.config
    return Form(
        config={
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "attn_pdrop": c.dropout,
            "embd_pdrop": c.dropout,
            "initializer_range": c.init_std,
            "layer_norm_epsilon": c.norm_eps,
            "n_embd": c.width,
            "n_head": c.heads,
            "n_inner": 4 * c.width,
            "n_layer": c.layers,
            "n_positions": c.n_positions,
            "resid_pdrop": c.dropout,
            "scale_attn_weights": True,
        },
        names={name: f"transformer.{name}" for name, _ in model.named_parameters()},
        longest_row=c.n_positions,
    )
