"""Exported folders in transformers, in one process that cannot import nstrain: scores, tokens, generate()."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tools.without_nstrain import without_nstrain
from tests.tools.written_line import written_line
from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens.encode import Encoder
from trainer_core.models.base import Model
from trainer_core.ops.export import export_line

MODELS = {
    "llama": ("llama-nano-cpu",),
    "gpt2": ("gpt2-cpu",),
    "neuronspark": ("nano-cpu",),
    "neuronspark otherwise": (
        "nano-cpu",
        'model.config.release="binary"',
        "model.config.pkm_shared=true",
        "model.config.synapse_groups=2",
        "model.config.interval=3",
    ),
}
"""Preset and settings by family; a NeuronSpark with the other choice of each kind, too."""
TEXT = "Größe, 2 < 3 \n\tend"

SCRIPT = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
ids = torch.tensor(given["ids"])
for folder in given["folders"]:
    trusted = {"trust_remote_code": True}
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **trusted)
    tokenizer = AutoTokenizer.from_pretrained(folder, **trusted)
    with torch.no_grad():
        scores = model.eval()(ids).logits
    begun, rest = ids[:, :9], {"max_new_tokens": 6, "do_sample": False}
    loss = model(ids, labels=ids).loss
    loss.backward()
    def said(**given):
        try:
            model(**{"input_ids": ids, **given})
        except Exception as error:
            return str(error)
    hole, tail, row = torch.ones_like(ids), torch.ones_like(ids), torch.arange(ids.shape[1])
    hole[1, 5], tail[1, 60:] = 0, 0
    longest = torch.zeros(1, 3000, dtype=torch.long)
    refused = {} if type(model).__name__ != "NeuronSparkForCausalLM" else {
        "left": said(attention_mask=hole.roll(-5, 1)),
        "hole": said(attention_mask=hole),
        "shape": said(attention_mask=hole[:, :9]),
        "cached": said(attention_mask=tail, use_cache=True),
        "positions": said(position_ids=(row % 9)[None]),
        "embeddings": said(inputs_embeds=torch.zeros(2, 70, 8)),
        "hidden": said(output_hidden_states=True),
        "empty": said(input_ids=ids[:, :0]),
        "long": said(input_ids=longest),
        "nothing": [
            said(attention_mask=tail),
            said(position_ids=row[None]),
            said(inputs_embeds=None, past_key_values=None, output_attentions=False),
        ],
    }
    with torch.no_grad():
        kept = model(ids, logits_to_keep=torch.tensor([3, 60])).logits
        masked = model(ids, attention_mask=tail).logits
    torch.save(
        {
            "refused": refused,
            "kept": kept,
            "masked": masked,
            "class": type(model).__name__,
            "wrong": {key: sorted(map(str, value)) for key, value in info.items() if value},
            "scores": scores,
            "tokens": tokenizer(given["text"]).input_ids,
            "spelled": tokenizer.decode(tokenizer(given["text"]).input_ids),
            "eos": tokenizer.eos_token_id,
            "cached": model.generate(begun, **rest),
            "parallel": model.generate(begun, use_cache=False, **rest),
            "beams": model.generate(begun, num_beams=3, **rest),
            "parallel_beams": model.generate(begun, num_beams=3, use_cache=False, **rest),
            "loss": loss.detach(),
            "gradients": sum(float(p.grad.abs().sum()) > 0 for p in model.parameters()),
        },
        folder + ".pt",
    )
"""

IDS = [[(7 * t * t + 3 * row) % 256 for t in range(70)] for row in range(2)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Model, dict[str, Any], Path]]:
    """By family our model, what a process with transformers alone says of it, and the data line."""
    root = tmp_path_factory.mktemp("hf")
    models = {}
    for family, (preset, *settings) in MODELS.items():
        paths, model = written_line(root / family, preset, 1, settings=settings)
        export_line(paths.root, root / f"{family}-out")
        models[family] = model
    given = {"ids": IDS, "text": TEXT, "folders": [str(root / f"{family}-out") for family in MODELS]}
    without_nstrain(SCRIPT, given, root)
    return {
        family: (model, torch.load(root / f"{family}-out.pt"), root / family / "data")
        for family, model in models.items()
    }


Loaded = dict[str, tuple[Model, dict[str, Any], Path]]


@pytest.mark.parametrize("family", MODELS)
def test_scores_are_ours(family: str, loaded: Loaded) -> None:
    model, found, _ = loaded[family]
    with torch.no_grad():
        ours = model.logits(torch.tensor(IDS))
    assert found["wrong"] == {}
    if family.startswith("neuronspark"):
        assert torch.equal(found["scores"], ours)
    else:
        torch.testing.assert_close(found["scores"], ours, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", MODELS)
def test_the_tokenizer_gives_the_ids_of_training(family: str, loaded: Loaded) -> None:
    _, found, data = loaded[family]
    line = load_data_line(data)
    encoder = Encoder(Path(line.tokenizer.path).read_bytes(), eos_id=line.eos_id)
    (document,) = encoder.encode([TEXT])
    assert found["tokens"] == document[:-1].tolist()
    assert (found["spelled"], found["eos"]) == (TEXT, line.eos_id)


@pytest.mark.parametrize("family", MODELS)
def test_generate_goes_on_with_the_likeliest_with_and_without_a_cache(family: str, loaded: Loaded) -> None:
    model, found, _ = loaded[family]
    assert torch.equal(found["cached"], found["parallel"])
    assert torch.equal(found["beams"], found["parallel_beams"])
    tokens = torch.tensor(IDS)[:, :9]
    with torch.no_grad():
        for _ in range(6):
            tokens = torch.cat((tokens, model.logits(tokens)[:, -1:].argmax(-1)), 1)
    assert torch.equal(found["cached"], tokens)


@pytest.mark.parametrize("family", MODELS)
def test_it_can_be_trained_on(family: str, loaded: Loaded) -> None:
    model, found, _ = loaded[family]
    ids = torch.tensor(IDS)
    with torch.no_grad():
        total, count = model.loss(ids[:, :-1], ids[:, 1:])
    torch.testing.assert_close(found["loss"], total / count, atol=1e-5, rtol=1e-5)
    assert found["gradients"] == len(list(model.parameters()))


def test_neuronspark_refuses_what_it_would_leave_out(loaded: Loaded) -> None:
    """A mask with holes, packed positions and hidden states were passed over in silence."""
    refused = loaded["neuronspark"][1]["refused"]
    assert refused.pop("nothing") == [None, None, None]
    words = {
        "left": "no padding on the left",
        "hole": "or in between",
        "shape": "attention_mask of shape (2, 9); expected (2, 70)",
        "cached": "none at all with a cache",
        "positions": "counts positions itself",
        "embeddings": "does not take inputs_embeds",
        "hidden": "does not take output_hidden_states",
        "empty": "a row of 0 tokens",
        "long": "a row of 3000 tokens; this NeuronSpark reads 1 to 2048",
    }
    assert refused.keys() == words.keys()
    assert not {key: said for key, said in refused.items() if words[key] not in str(said)}


@pytest.mark.parametrize("family", MODELS)
def test_places_that_are_kept_and_padding_on_the_right(family: str, loaded: Loaded) -> None:
    found = loaded[family][1]
    torch.testing.assert_close(found["kept"], found["scores"][:, [3, 60]], atol=1e-5, rtol=0)
    torch.testing.assert_close(found["masked"][1, :60], found["scores"][1, :60], atol=1e-5, rtol=0)


def test_the_classes_are_those_of_transformers_where_it_has_them(loaded: Loaded) -> None:
    classes = {family: found["class"] for family, (_, found, _) in loaded.items()}
    assert classes == {
        "llama": "LlamaForCausalLM",
        "gpt2": "GPT2LMHeadModel",
        "neuronspark": "NeuronSparkForCausalLM",
        "neuronspark otherwise": "NeuronSparkForCausalLM",
    }
