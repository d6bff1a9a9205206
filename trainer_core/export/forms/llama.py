"""Llama as transformers' LlamaForCausalLM: the same rotation by halves, other names."""

from __future__ import annotations

import re

from trainer_core.export.forms.form import Form
from trainer_core.models.base import Model
from trainer_core.models.llama import Llama

_OUTSIDE = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
_INSIDE = {
    "attention_norm": "input_layernorm",
    "attention.q_proj": "self_attn.q_proj",
    "attention.k_proj": "self_attn.k_proj",
    "attention.v_proj": "self_attn.v_proj",
    "attention.out_proj": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate_proj": "mlp.gate_proj",
    "ffn.up_proj": "mlp.up_proj",
    "ffn.down_proj": "mlp.down_proj",
}
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)\.weight")


def form(model: Model) -> Form:
    """The form of a Llama."""
    assert isinstance(model, Llama)
    c = model.config
    return Form(
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "head_dim": c.width // c.heads,
            "hidden_act": "silu",
            "hidden_size": c.width,
            "initializer_range": c.init_std,
            "intermediate_size": c.ffn,
            "max_position_embeddings": c.rope_max_seq_len,
            "mlp_bias": False,
            "num_attention_heads": c.heads,
            "num_hidden_layers": c.layers,
            "num_key_value_heads": c.heads,
            "rms_norm_eps": c.norm_eps,
            # transformers before 5 reads the first, later ones the second.
            "rope_theta": c.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        },
        names={name: _name(name) for name, _ in model.named_parameters()},
        longest_row=c.rope_max_seq_len,
    )


def _name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match = _BLOCK.fullmatch(name)
    assert match, name
    return f"model.layers.{match[1]}.{_INSIDE[match[2]]}.weight"
