"""What each family is in the Hugging Face layout: one that can be exported has a module and a line here."""

from __future__ import annotations

import importlib

from trainer_core.errors import Refused
from trainer_core.export.forms.form import Form
from trainer_core.models.base import Model

__all__ = ["FORMS", "Form", "form_of"]

FORMS = {
    "llama": "trainer_core.export.forms.llama",
    "gpt2": "trainer_core.export.forms.gpt2",
    "neuronspark": "trainer_core.export.forms.neuronspark",
}
"""Module of each family, with `form(model) -> Form`."""


def form_of(family: str, model: Model) -> Form:
    """The form of a model, of which only shapes are looked at. Raises Refused for a family without one."""
    if family not in FORMS:
        raise Refused(f"models of family {family!r} cannot be exported; those of {', '.join(FORMS)} can")
    found = importlib.import_module(FORMS[family]).form(model)
    assert isinstance(found, Form)
    assert found.names.keys() == dict(model.named_parameters()).keys(), (
        "a parameter has no name in the export"
    )
    return found
