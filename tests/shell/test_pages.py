"""How much a page holds."""

import json

import pytest

from upcall_contracts import limits
from upcall_shell.queries import as_many_as_fit

HALF = {"text": "x" * (limits.PAGE_MAX_BYTES // 2 - len(json.dumps({"text": ""})))}
SMALL = {"text": ""}
HUGE = {"text": "é" * (limits.PAGE_MAX_BYTES // 6)}
"""JSON escapes its letters, six characters each: with the braces it is just over a page."""


@pytest.mark.parametrize(
    ("records", "at_least", "fit"),
    [
        pytest.param([], 1, 0, id="nothing"),
        pytest.param([HALF, HALF], 1, 2, id="exactly a page"),
        pytest.param([HALF, HALF, SMALL], 1, 2, id="one more would be too much"),
        pytest.param([HALF, HUGE, SMALL], 1, 1, id="what is left out begins at the first that is too much"),
        pytest.param([HUGE, SMALL], 1, 1, id="a list goes on, so a page has at least one"),
        pytest.param([HUGE, SMALL], 0, 0, id="not where the rest is named beside it"),
    ],
)
def test_a_page_ends_where_the_next_record_is_too_much(
    records: list[dict[str, str]], at_least: int, fit: int
) -> None:
    assert as_many_as_fit(records, at_least=at_least) == records[:fit]
