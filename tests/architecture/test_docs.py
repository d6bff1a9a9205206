"""Documents against the code: the exit-code table, links, and the commands that they name."""

from __future__ import annotations

import re

import pytest
from sources import ROOT

from deployments.cli import COMMANDS
from trainer_core.errors import CRASHED, OUTCOMES, STUCK, Outcome

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def exit_code_table() -> str:
    """The table of docs/operations.md, as errors.py has it."""

    def row(outcome: Outcome) -> str:
        code = str(outcome.code) if outcome.code >= 0 else "other" if outcome is CRASHED else "-"
        retried = "yes, counted" if outcome.counted else "yes" if outcome.retried else "no"
        state = f"{outcome.state_type.capitalize()}/{outcome.state_name}"
        return f"| {code} | {state} | `{outcome.status}` | {retried} | {outcome.meaning} |"

    head = [
        "| exit code | Prefect state | `status` | started again by itself | meaning |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(row(outcome) for outcome in (*OUTCOMES.values(), CRASHED, STUCK))])


def test_the_exit_code_table_is_the_codes() -> None:
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert exit_code_table() in text, f"docs/operations.md must hold this table:\n{exit_code_table()}"


def test_every_exit_code_has_advice() -> None:
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    for outcome in (*OUTCOMES.values(), STUCK):
        assert f"**{outcome.state_name}**" in text, outcome.state_name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: object) -> None:
    path = ROOT / str(document)
    targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    local = [target.partition("#")[0] for target in targets if "://" not in target]
    assert not [target for target in local if not (path.parent / target).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_documents_exist(document: object) -> None:
    text = (ROOT / str(document)).read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^|; |bin/)nstrain ([a-z]+)", text, flags=re.MULTILINE))
    assert named <= {name for name, *_ in COMMANDS}


def test_the_first_screen_of_the_readme_says_what_one_must_know() -> None:
    screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30])
    for needed in ("One GPU per line", "FSDP", "tensor", "pipeline", "make quickstart", "make test"):
        assert needed in screen
