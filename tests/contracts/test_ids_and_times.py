"""Ids are tokens, derived ids are stable, and times go to the wire and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall_contracts.ids import derive_id, is_token
from upcall_contracts.times import from_wire, to_wire


@pytest.mark.parametrize(
    ("text", "token", "meaning"),
    [
        ("a", True, "one character is enough"),
        ("A-z_09", True, "letters, digits, underscore and hyphen"),
        ("x" * 64, True, "exactly the limit"),
        ("x" * 65, False, "one over the limit"),
        ("", False, "empty"),
        ("a.b", False, "a dot would be two tokens of a subject"),
        ("*", False, "a wildcard of subjects"),
        (">", False, "a wildcard of subjects"),
        ("a b", False, "white space"),
        ("a\n", False, "a line break at the end is no end of the text"),
        ("é", False, "ASCII only"),
        ("\uff11", False, "digits of other scripts are no digits here"),
    ],
)
def test_tokens(text: str, token: bool, meaning: str) -> None:
    assert is_token(text) is token, meaning


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_a_derived_id_is_a_token_of_at_most_40_characters_and_always_the_same(parts: list[str]) -> None:
    made = derive_id("q_", *parts)
    assert is_token(made)
    assert len(made) <= 40
    assert made == derive_id("q_", *parts)


def test_parts_do_not_run_together() -> None:
    made = {derive_id("", *parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"))}
    assert len(made) == 5


def test_a_derived_id_never_changes_between_versions() -> None:
    """Ids in the log were derived by earlier versions."""
    assert derive_id("r_", "p1", "session.spawn", "c1") == "r_v4clvghkqnaah75tn3qv5vp5yy"


@pytest.mark.parametrize("prefix", ["x" * 15, "a.b", "é"])
def test_a_prefix_that_would_spoil_the_token_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        derive_id(prefix, "a")


@pytest.mark.parametrize(
    ("ms", "text", "meaning"),
    [
        (0, "1970-01-01T00:00:00.000Z", "the epoch, with its milliseconds"),
        (1, "1970-01-01T00:00:00.001Z", "three digits always"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z", "any moment"),
        (-1, "1969-12-31T23:59:59.999Z", "before the epoch"),
    ],
)
def test_times_on_the_wire(ms: int, text: str, meaning: str) -> None:
    assert to_wire(ms) == text, meaning
    assert from_wire(text) == ms, meaning


@pytest.mark.parametrize(
    ("text", "ms", "meaning"),
    [
        ("1970-01-01T00:00:01Z", 1000, "without a fraction"),
        ("1970-01-01T00:00:00.5Z", 500, "one digit is tenths"),
        ("1970-01-01T00:00:00.123999Z", 123, "finer digits are cut"),
        ("1970-01-01T01:00:00.000+01:00", 0, "another offset is the same moment"),
        ("1970-01-01t00:00:00z", 0, "RFC 3339 allows small letters"),
    ],
)
def test_other_spellings_of_a_time_are_read(text: str, ms: int, meaning: str) -> None:
    assert from_wire(text) == ms, meaning


@pytest.mark.parametrize(
    "text", ["", "now", "2023-11-14", "2023-11-14T22:13:20", "2023-13-14T22:13:20Z", "5"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 # the parser of Python says it in words of its own
        from_wire(text)


@given(st.integers(min_value=0, max_value=253_402_300_799_999))
def test_a_time_goes_to_the_wire_and_back(ms: int) -> None:
    assert from_wire(to_wire(ms)) == ms
