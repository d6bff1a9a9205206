"""Case D13: counts as people write them in JSON are exact integers or refused."""

import json
from pathlib import Path

import pytest

from trainer_core.schedule.tokens import parse_tokens

CASE = Path(__file__).parents[2] / "cases" / "D13"
NUMBERS = json.loads((CASE / "numbers.json").read_text())
WANT = json.loads((CASE / "want.json").read_text())

NO_COUNT_OF_SOMETHING = {"h"}
"""Zero is a count; where one must be positive, run.json says so."""


@pytest.mark.parametrize("key", NUMBERS)
def test_a_count_is_read_exactly_or_refused(key: str) -> None:
    written = NUMBERS[key]
    if key in set(WANT["refused"]) - NO_COUNT_OF_SOMETHING:
        with pytest.raises(ValueError, match="token count"):
            parse_tokens(written)
        return
    found = parse_tokens(written)
    assert type(found) is int and found == WANT.get(key, int(float(written)))
    assert parse_tokens(str(written)) == found, "text is read as the number that it writes"


def test_products_of_counts_stay_exact() -> None:
    assert parse_tokens("262144") * 17_930 == 4_700_241_920
