"""Whether two questions are the same or nearly the same."""

import unicodedata
from typing import Final

from rapidfuzz import fuzz

NEARLY_SAME: Final = 90.0
"""Of 100. Reached by a typo or a small word more in a sentence; not by another noun in a short question."""


def normalised(text: str) -> str:
    """A text without what doesn't matter: case, punctuation, spacing and word order."""
    kept = "".join(
        " " if unicodedata.category(c)[0] in "PZSC" else c
        for c in unicodedata.normalize("NFKC", text).casefold()
    )
    return " ".join(sorted(kept.split()))


def same_question(one: str, other: str) -> bool:
    """Whether asking `other` while `one` is open asks the same again.

    Texts that consist of punctuation alone are compared as they are.
    """
    a, b = normalised(one), normalised(other)
    if not a or not b:
        return one.strip() == other.strip()
    return a == b or fuzz.ratio(a, b) >= NEARLY_SAME
