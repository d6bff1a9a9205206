"""An exported NeuronSpark whose config.json was edited, or that is asked for what it has not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.tools.without_nstrain import without_nstrain
from tests.tools.written_line import written_line
from trainer_core.models.base import Model
from trainer_core.models.registry import build
from trainer_core.ops.export import export_line

SCRIPT = """
from transformers import AutoModelForCausalLM
ids = torch.tensor(given["ids"])
def load(name):
    folder = given["root"] + "/" + name
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
def said(call, *args, **more):
    try:
        return call(*args, **more)
    except Exception as error:
        return str(error)
found = {"edited": {name: str(said(load, name)) for name in given["edited"]}}
found["deeper"] = load("deeper").state_dict()
found["tuple"] = type(load("tuple")(ids)).__name__
found["hidden"] = said(load("hidden"), ids)
model, row = load("out"), torch.arange(ids.shape[1])
two, inside = {"max_new_tokens": 2}, {"output_hidden_states": True, "return_dict_in_generate": True}
found["refused"] = {
    "unknown": said(model, ids, foo=3),
    "places": said(model, ids, cache_position=row + 5),
    "generated": said(model.generate, ids, **two, **inside),
    "row": said(model, ids[0]),
    "rows": said(model, ids[:0]),
    "other rows": said(model, ids[:1], state=model(ids, use_cache=True).state),
    "labels": said(model, ids, labels=ids, logits_to_keep=3),
    "packed": said(model.generate, ids, **two, position_ids=(row % 9)[None]),
}
loss = model(ids, labels=ids, num_items_in_batch=torch.tensor(7)).loss
with torch.autocast("cpu", dtype=torch.bfloat16):
    cast = model(ids, labels=ids, num_items_in_batch=torch.tensor(7)).loss
    state = model(ids[:, :9], use_cache=True).state
    scores = model(ids[:, 9:], state=state).logits
    found["inside"] = said(model(ids, labels=ids).loss.backward)
cast.backward()
found["casts"] = {"loss": loss.detach(), "cast": cast.detach(), "scores": scores.detach()}
found["finite"] = all(p.grad.isfinite().all() for p in model.parameters())
torch.save(found, given["root"] + "/found.pt")
"""

IDS = [[(7 * t * t + 3 * row) % 256 for t in range(40)] for row in range(2)]

Edit = Callable[[dict[str, Any]], object]

EDITED: dict[str, tuple[Edit, str]] = {
    "width": (lambda c: c.update(hidden_size=7), "hidden_size is 7, architecture.width is 128; they are one"),
    "row": (
        lambda c: c["architecture"].update(rope_max_seq_len=4096),
        "max_position_embeddings is 2048, architecture.rope_max_seq_len is 4096; they are one setting",
    ),
    "several": (
        lambda c: c.update(num_hidden_layers=3, num_attention_heads=1, tie_word_embeddings=False),
        "config.json: num_hidden_layers is 3, architecture.layers is 8; they are one setting\n"
        "config.json: num_attention_heads is 1, architecture.heads is 4; they are one setting\n"
        "config.json: tie_word_embeddings is false; the head is the embedding's table",
    ),
    "sizes": (
        lambda c: c["architecture"].update(heads=3, foo=1),
        "config.json: architecture.foo is not a setting of neuronspark",
    ),
    "text": (lambda c: c.update(architecture="x"), "config.json: architecture is 'x'; expected an object"),
    "vocabulary": (lambda c: c.update(vocab_size=0), "config.json: vocab_size is 0; expected a positive"),
    "none": (lambda c: c.pop("architecture"), "config.json: architecture.width is missing"),
}

LOADED: dict[str, Edit] = {
    "deeper": lambda c: (c.update(num_hidden_layers=9), c["architecture"].update(layers=9)),
    "tuple": lambda c: c.update(return_dict=False),
    "hidden": lambda c: c.update(output_hidden_states=True),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, dict[str, Any]]:
    """Our model, and what a process with transformers alone says of it."""
    root = tmp_path_factory.mktemp("hf")
    paths, model = written_line(root / "line", "nano-cpu", 1)
    export_line(paths.root, root / "out")
    for name, edit in {**{name: edit for name, (edit, _) in EDITED.items()}, **LOADED}.items():
        shutil.copytree(root / "out", root / name)
        config = json.loads((root / name / "config.json").read_text())
        edit(config)
        (root / name / "config.json").write_text(json.dumps(config))
    without_nstrain(SCRIPT, {"ids": IDS, "root": str(root), "edited": list(EDITED)}, root)
    return model, torch.load(root / "found.pt", weights_only=False)


Loaded = tuple[Model, dict[str, Any]]


def test_what_config_json_says_twice_is_one_setting(loaded: Loaded) -> None:
    """Keys under the usual names were passed over: the model was another than config.json said."""
    said = loaded[1]["edited"]
    assert not {name: said[name] for name, (_, words) in EDITED.items() if words not in said[name]}


def test_parameters_that_the_weights_lack_have_first_values(loaded: Loaded) -> None:
    """They were memory that nobody had written."""
    model, found = loaded
    first = build("nano-cpu", {"layers": 9}, model.vocab_size, 0).state_dict()
    ours = dict(model.named_parameters())
    for name, value in found["deeper"].items():
        name = name.removeprefix("model.")
        assert torch.equal(value, ours[name] if name in ours else first[name]), name


def test_what_it_has_not_is_refused_where_it_is_asked_for(loaded: Loaded) -> None:
    found = loaded[1]
    assert found["hidden"] == "NeuronSpark does not take output_hidden_states"
    assert found["tuple"] == "tuple"
    words = {
        "unknown": "NeuronSpark does not take foo",
        "places": "leave out cache_position",
        "generated": "NeuronSpark does not take output_hidden_states",
        "packed": "leave out position_ids",
        "row": "input_ids of shape (40,); expected rows of tokens, [B, T]",
        "rows": "input_ids of shape (0, 40); expected rows of tokens, [B, T]",
        "other rows": "input_ids of shape (1, 40) go on from a state of 2 rows",
        "labels": "labels of shape (2, 40); scores are (2, 3)",
    }
    assert not {
        name: found["refused"][name] for name in words if words[name] not in str(found["refused"][name])
    }


def test_it_computes_in_the_dtype_of_its_weights_under_an_autocast(loaded: Loaded) -> None:
    """Products became narrow in the middle of what is added up in place, which crashed."""
    model, found = loaded
    casts = found["casts"]
    assert torch.equal(casts["loss"], casts["cast"]) and found["finite"]
    with torch.no_grad():
        ours = model.logits(torch.tensor(IDS))[:, 9:]
    torch.testing.assert_close(casts["scores"], ours, atol=1e-5, rtol=0)
    assert "call backward() behind its block" in found["inside"]
