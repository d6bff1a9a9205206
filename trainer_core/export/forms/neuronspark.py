"""NeuronSpark, which transformers does not know: our own files go along as its modelling code."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from trainer_core.export.forms.form import Form
from trainer_core.export.source_files import flat_name, needed_sources
from trainer_core.models.base import Model
from trainer_core.models.neuronspark.model import NeuronSpark

_ROOT = "trainer_core.models.neuronspark.model"
_THIN = ("configuration_neuronspark.py", "modeling_neuronspark.py")


def form(model: Model) -> Form:
    """The form of a NeuronSpark."""
    assert isinstance(model, NeuronSpark)
    c = model.config
    return Form(
        config={
            "architectures": ["NeuronSparkForCausalLM"],
            "model_type": "neuronspark",
            "auto_map": {
                "AutoConfig": "configuration_neuronspark.NeuronSparkConfig",
                "AutoModelForCausalLM": "modeling_neuronspark.NeuronSparkForCausalLM",
            },
            "architecture": asdict(c),
            "hidden_size": c.width,
            "max_position_embeddings": c.rope_max_seq_len,
            "num_attention_heads": c.heads,
            "num_hidden_layers": c.layers,
        },
        names={name: f"model.{name}" for name, _ in model.named_parameters()},
        longest_row=c.rope_max_seq_len,
        code=_code(),
    )


def _code() -> dict[str, str]:
    """The model's sources as files that know each other by relative imports, and the two thin ones above."""
    files = needed_sources(_ROOT)
    folder = Path(__file__).parents[1] / "shipped"
    # The loader of transformers copies those files only that it finds in lines `from .file import`.
    known = "\n".join(f"from .{name.removesuffix('.py')} import __doc__ as _  # noqa: F401" for name in files)
    for name in _THIN:
        text = (folder / f"{name}.in").read_text(encoding="utf-8")
        files[name] = text.replace("@MODEL@", flat_name(_ROOT)).replace("@FILES@", known)
    return files
