"""What counts as asking the same again."""
# ruff: noqa: RUF001  characters that look alike are what is tested here

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall_question_broker.decisions.sameness import same_question

LONG = "The design says invoices are kept for ten years, the code deletes them after one. "

SAME = [
    ("Which database?", "Which database?", "word for word"),
    ("Which database should we use?", "WHICH DATABASE SHOULD WE USE", "case and punctuation"),
    ("Which database should we use?", " which\n\tdatabase   should we use ?", "spacing"),
    ("Which database should we use?", "Should we use which database?", "word order"),
    ("May I delete `foo.py`?", "May I delete 'foo.py'?", "quotes"),
    ("Don't we need it?", "Dont we need it", "apostrophes"),
    ("Straße oder Weg?", "STRASSE oder Weg?", "case beyond ASCII"),
    ("ｗｈｉｃｈ database?", "which database?", "width"),
    ("Which data\u200bbase?", "Which database?", "what can't be seen"),
    ("Café au lait?", "Cafe\u0301 au lait?", "composed or not"),
    ("Which database stores orders?", "Which databse stores orders?", "a letter left out"),
    ("Which database stores orders?", "Which database stores order?", "a plural"),
    ("Keep the colours?", "Keep the colors?", "a spelling"),
    ("Which database should we use?", "Which database do I use?", "small words"),
    ("Which database should we use?", "Please, which database should we use now?", "small words more"),
    ("Use PostgreSQL for it?", "Use Postgres for it?", "two letters of a long word"),
    (LONG + "Which is right?", LONG + "Which of them is right?", "a little more in a long text"),
    ("使用哪个数据库?", "使用哪个数据库？", "punctuation in Chinese"),
    ("どのデータベースを使いますか", "どのデータベースを使いますか。", "and in Japanese"),
    ("Какую базу данных использовать?", "какую базу данных ИСПОЛЬЗОВАТЬ", "case in Cyrillic"),
    ("أي قاعدة بيانات؟", "أي قاعدة بيانات", "punctuation in Arabic"),
    ("🍎 🍌", "🍌🍎", "emoji alone, in another order"),
    ("❤️?", "❤", "an emoji with and without its variation"),
    ("???", "???", "punctuation alone, as it is"),
]

OTHER = [
    ("Use v1 or v2 of the API?", "Use v3 or v4 of the API?", "other numbers in like words"),
    ("Upgrade to 1.2?", "Upgrade to 2.1?", "a number is not its digits in another order"),
    ("Keep 10 copies?", "Keep 100 copies?", "a digit more"),
    ("Keep ten copies?", "Keep two copies?", "numbers as words"),
    ("Use plan A?", "Use plan B?", "letters that name"),
    ("Which database should we use?", "Which language should we use?", "another noun"),
    (
        "How many retries does a payment get?",
        "How many retries does a refund get?",
        "another noun in a longer one",
    ),
    ("Use PostgreSQL or SQLite?", "Use MySQL or SQLite?", "another name"),
    ("Should I delete it?", "Should I not delete it?", "a negation"),
    ("Can I delete it?", "Can't I delete it?", "a negation that is joined"),
    ("Should I encrypt it?", "Should I decrypt it?", "opposites that look alike"),
    ("Should it increase?", "Should it decrease?", "opposites that look alike"),
    ("Turn it on?", "Turn it off?", "opposites in small words"),
    ("Ship on Tuesday?", "Ship on Thursday?", "names that look alike"),
    ("Drop A and B?", "Drop A or B?", "how it is joined"),
    ("Delete the table?", "Delete the old table?", "a word more in a short one"),
    (LONG + "Which is right?", "Which is right?", "much more"),
    ("Is it 5 $?", "Is it 5 €?", "symbols"),
    ("C or Rust?", "C++ or Rust?", "symbols that are part of a name"),
    ("使用版本一吗?", "使用版本二吗?", "numbers in Chinese"),
    ("删除这个表吗?", "不删除这个表吗?", "a negation in Chinese"),
    ("使用哪个数据库?", "使用哪个编程语言?", "another noun in Chinese"),
    ("Какую базу данных?", "Какую версию данных?", "another noun in Cyrillic"),
    ("استخدم ١ أو ٢؟", "استخدم ٣ أو ٤؟", "other digits in Arabic"),
    ("Use 🍎?", "Use 🍌?", "another emoji"),
    ("🍎", "🍌", "emoji alone"),
    ("???", "!!!", "punctuation alone, as it is"),
    ("???", "Which?", "punctuation alone, and a word"),
]


@pytest.mark.parametrize(("one", "other"), [pytest.param(a, b, id=why) for a, b, why in SAME])
def test_same(one: str, other: str) -> None:
    assert same_question(one, other)
    assert same_question(other, one)


@pytest.mark.parametrize(
    ("one", "other"), [pytest.param(a, b, id=f"{n}-{why}") for n, (a, b, why) in enumerate(OTHER)]
)
def test_other(one: str, other: str) -> None:
    assert not same_question(one, other)
    assert not same_question(other, one)


@given(st.text(min_size=1))
def test_every_text_is_the_same_as_itself(text: str) -> None:
    assert same_question(text, text)


@given(st.text(), st.text())
def test_it_makes_no_odds_which_was_first(one: str, other: str) -> None:
    assert same_question(one, other) == same_question(other, one)


@given(st.lists(st.sampled_from(["which", "database", "should", "orders", "for", "7"]), min_size=1))
def test_word_order_case_and_spacing_never_matter(words: list[str]) -> None:
    assert same_question(" ".join(words), "\n ".join(reversed([w.upper() for w in words])) + "?!")
