"""The interpreted suite runs in a process of its own, where Triton is told before its import to interpret."""

import re

import pytest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kernels_equal_their_twins_when_interpreted(interpreted_suite: tuple[int, str]) -> None:
    code, output = interpreted_suite
    assert code == 0, output
    assert int(re.findall(r"(\d+) passed", output)[-1]) >= 50
