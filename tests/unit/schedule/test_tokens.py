"""Token counts are exact integers or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from trainer_core.schedule.tokens import LIMIT, TokenCount, parse_tokens


@pytest.mark.parametrize(
    ("written", "exact"),
    [
        (0, 0),
        (262144, 262144),
        ("262144", 262144),
        ("20_000", 20_000),
        (2e10, 20_000_000_000),
        ("2e10", 20_000_000_000),
        (4.7e9, 4_700_000_000),
        ("4.7e9", 4_700_000_000),
        ("1.5e1", 15),
        (LIMIT, LIMIT),
    ],
)
def test_counts_are_read_exactly(written, exact):
    found = parse_tokens(written)
    assert found == exact
    assert type(found) is int


@pytest.mark.parametrize(
    "written",
    [
        1e23,
        "1e23",
        1.5,
        0.1,
        "1.5",
        "2.5e0",
        True,
        False,
        -1,
        "-1",
        "abc",
        "",
        "1__0",
        "_1",
        "1e-3",
        None,
        [1],
        float("nan"),
        float("inf"),
        "nan",
        LIMIT + 1,
    ],
)
def test_everything_else_is_refused(written):
    with pytest.raises(ValueError, match="token count"):
        parse_tokens(written)


@given(st.integers(min_value=0, max_value=LIMIT))
def test_an_integer_survives_text(count):
    assert parse_tokens(str(count)) == count
    assert parse_tokens(f"{count:_}") == count


def test_the_pydantic_type_reads_the_same():
    class Form(BaseModel):
        tokens: TokenCount

    assert Form.model_validate({"tokens": "2e10"}).tokens == 20_000_000_000
    with pytest.raises(ValidationError, match="whole number"):
        Form.model_validate({"tokens": 2.5})
