"""Whether two questions are the same or nearly the same.

Case, punctuation, spacing and word order don't matter. Beyond that a slip in a word, a small word, or a
little more in a long question make no other question. Another number, symbol, letter, name or a "not" always
does: "Use v1 or v2?" is not "Use v3 or v4?", however alike they are as texts.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from rapidfuzz.distance import OSA


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SMALL: Final = _set(
    """a an the to of in on at for with is are be was were do does did i we you it its this that these those
    there here my our your me us should shall can could may might would will please now then so just also"""
)
"""Words that may come, go and change without making another question."""

_TURNS: Final = _set(
    """not no never none nor without except unless only instead off
    cannot cant dont doesnt didnt isnt arent wont shouldnt mustnt
    不 没 沒 無 无 非 否 未 别 別 勿"""
)
"""Words that turn a question into another, however little they are."""

_UNSPACED: Final = (
    ("\u0e00", "\u0eff"),  # Thai, Lao
    ("\u1000", "\u109f"),  # Myanmar
    ("\u1780", "\u17ff"),  # Khmer
    ("\u3040", "\u30ff"),  # kana
    ("\u3400", "\u9fff"),  # Han
    ("\U00020000", "\U0003ffff"),  # Han, further planes
)

_SLIP_FROM: Final = 5  # letters of a word in which one letter may be wrong …
_TWO_SLIPS_FROM: Final = 8  # … or two
_LITTLE: Final = 8  # what one of them has more may be an eighth of it
_MANY: Final = 40  # so many words in which they differ are never slips, and take long to pair


def same_question(one: str, other: str) -> bool:
    """Whether asking `other` while `one` is open asks the same again.

    Texts that consist of punctuation alone are compared as they are.
    """
    a, b = Counter(words(one)), Counter(words(other))
    if not a or not b:
        return one.strip() == other.strip()
    only_a, only_b = list((a - b).elements()), list((b - a).elements())
    if len(only_a) + len(only_b) > _MANY:
        return False
    only_a, only_b = _without_slips(only_a, only_b)
    rest_a, rest_b = _telling(only_a), _telling(only_b)
    if (rest_a and rest_b) or any(_weighs(word) for word in rest_a + rest_b):
        return False
    return _letters(rest_a + rest_b) * _LITTLE <= max(_letters(a.elements()), _letters(b.elements()))


def words(text: str) -> Iterator[str]:
    """The words of a text, in any script. A symbol is one, and each character where no spaces are written."""
    word = ""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    for at, character in enumerate(folded):
        kind = unicodedata.category(character)
        if kind == "Cf" or "\ufe00" <= character <= "\ufe0f" or character in "'’":
            continue  # without a width, or inside a word
        if kind[0] in "LMN" and not _stands_alone(character):
            word += character
        elif word and kind[0] == "P" and _between_digits(folded, at):
            word += character  # 1.2 is not 2.1
        else:
            if word:
                yield word
            word = ""
            if kind in {"Sm", "Sc", "So"} or _stands_alone(character):
                yield character
    if word:
        yield word


def _stands_alone(character: str) -> bool:
    """Whether it is of a script that writes no spaces between words."""
    return character >= _UNSPACED[0][0] and any(low <= character <= high for low, high in _UNSPACED)


def _between_digits(text: str, at: int) -> bool:
    return text[at - 1].isdigit() and text[at + 1 : at + 2].isdigit()


def _without_slips(one: list[str], other: list[str]) -> tuple[list[str], list[str]]:
    """The words that are left when each that is a slip of one on the other side is taken away with it."""
    left: list[str] = []
    others = list(other)
    for word in one:
        twin = next((each for each in others if _is_slip(word, each)), None)
        if twin is None:
            left.append(word)
        else:
            others.remove(twin)
    return left, others


def _is_slip(one: str, other: str) -> bool:
    """Whether two words are one, written or inflected another way."""
    if one[0] != other[0] or _weighs(one) or _weighs(other):
        return False
    short = min(len(one), len(other))
    if one in {other, other + "s"} or other == one + "s":
        return True
    allowed = 2 if short >= _TWO_SLIPS_FROM else 1 if short >= _SLIP_FROM else 0
    return allowed > 0 and OSA.distance(one, other, score_cutoff=allowed) <= allowed


def _telling(those: Iterable[str]) -> list[str]:
    return [word for word in those if word not in _SMALL]


def _weighs(word: str) -> bool:
    """Whether having it or not always makes another question: a number, a symbol, a letter, a negation."""
    if word in _TURNS or any(character.isnumeric() for character in word):
        return True
    return len(word) == 1 and not _stands_alone(word)


def _letters(those: Iterable[str]) -> int:
    return sum(len(word) for word in those)
