"""report.get and report.list: what they show, page by page, and to whom."""

from typing import Any

import pytest

from upcall_contracts import keys
from upcall_contracts.errors import Refusal
from upcall_contracts.records import Host
from upcall_reporter.queries import read_cursor, write_cursor

from .deployment import Deployment, eventually
from .periods import T0, closed, held, session, top

CURSORS = [
    ("1800000000000.C-p1", (1_800_000_000_000, "C-p1")),
    ("0.a", (0, "a")),
    # not ours
    ("", None),
    ("C-p1", None),
    ("12.", None),
    (".C-p1", None),
    ("-1.C-p1", None),
    ("1e3.C-p1", None),
    ("٣.C-p1", None),
    ("12.C p1", None),
    ("12.C-p1.x", None),
    ("9999999999999999.C-p1", None),
]


@pytest.mark.parametrize(("text", "place"), CURSORS)
def test_cursor(text: str, place: tuple[int, str] | None) -> None:
    """A cursor of ours is read as what was written; any other text is refused."""
    found = read_cursor(text)
    if place is None:
        assert isinstance(found, Refusal)
        assert found.code == "invalid"
        assert found.details["fields"][0]["field"] == "cursor"
    else:
        assert found == place
        assert write_cursor(place) == text


async def family(d: Deployment) -> None:
    """P, its child C, and G below: C and G have reports; held by a runner each."""
    await d.say(session("S"))
    await d.say(top("X"))
    child = session(host=Host.RUNNER, holder="runner-c")
    grandchild = session("G", parent_session_id="C", ancestors=["P", "C"], holder="runner-g", depth=2)
    await d.closes(closed("C-p1"), child)
    await d.holds(held("C-p2", held_since=T0 + 9000), child)
    await d.closes(closed("G-p1", run_id="G-r1"), grandchild, parent_session_id="C", parent_run_id="C-r1")
    await d.closes(closed("P-p1", run_id="P-r1"), top("P"), parent_run_id=None)
    await d.caught_up()


SEES = {
    "operator": {"C-p1", "G-p1", "P-p1"},
    "P": {"C-p1", "G-p1", "P-p1"},  # itself and what is below it
    "C": {"C-p1", "G-p1"},
    "G": {"G-p1"},
    "runner-c": {"C-p1", "G-p1"},  # what it holds and what is below that
    "runner-g": {"G-p1"},
    "S": set[str](),  # a sibling
    "X": set[str](),  # another tree
    "nobody": set[str](),
}


async def test_get_by_everybody(d: Deployment) -> None:
    """Who may not see a report hears exactly what is said of one that does not exist."""
    async with d.reporter():
        await family(d)
        for caller, visible in SEES.items():
            for period_id in ("C-p1", "G-p1", "P-p1"):
                reply = await d.query(caller, "get", period_id=period_id)
                if period_id in visible:
                    assert reply["result"]["report"]["period_id"] == period_id, (caller, period_id)
                else:
                    absent = await d.query(caller, "get", period_id="absent")
                    assert reply["error"]["code"] == absent["error"]["code"] == "unknown_report"
                    assert (
                        reply["error"]["message"].replace(period_id, "absent") == absent["error"]["message"]
                    )


async def test_list_without_a_session(d: Deployment) -> None:
    """A session has the reports that go to it, the operator all; who is no session has to name one."""
    async with d.reporter():
        await family(d)
        assert await d.listed("P") == ["C-p1", "C-p2"]
        assert await d.listed("C") == ["G-p1"]
        assert await d.listed("G") == []
        assert set(await d.listed("operator")) == {"C-p1", "C-p2", "G-p1", "P-p1"}
        assert (await d.query("runner-c", "list"))["error"]["code"] == "unknown_session"
        assert await d.listed("P", status="held") == ["C-p2"]
        assert await d.listed("P", status="delivered") == ["C-p1"]
        assert await d.listed("operator", status="suppressed") == ["P-p1"]


ON: list[tuple[str, str, list[str] | None]] = [
    ("P", "C", ["C-p1", "C-p2"]),
    ("P", "G", ["G-p1"]),
    ("P", "P", ["P-p1"]),  # its own
    ("C", "C", ["C-p1", "C-p2"]),
    ("runner-c", "C", ["C-p1", "C-p2"]),
    ("runner-c", "G", ["G-p1"]),
    ("operator", "P", ["P-p1"]),
    ("P", "S", []),  # nothing yet
    ("C", "P", None),
    ("S", "C", None),
    ("X", "C", None),
    ("runner-g", "C", None),
    ("P", "absent", None),
    ("operator", "absent", None),
]


async def test_list_on_a_session(d: Deployment) -> None:
    """The reports on a session, to whoever sees that session; to others it does not exist."""
    async with d.reporter():
        await family(d)
        for whole in (True, False):
            if whole:
                await eventually(lambda: d.redis.exists(keys.ready("reporter")), bool)
            else:
                d.redis_server.kill()
            for caller, of, expected in ON:
                if expected is None:
                    reply = await d.query(caller, "list", session_id=of)
                    assert reply["error"]["code"] == "unknown_session", (caller, of)
                else:
                    assert await d.listed(caller, session_id=of) == expected, (caller, of)


@pytest.mark.parametrize("whole", [True, False])
async def test_pages(d: Deployment, whole: bool) -> None:
    """Page after page gives everything once, oldest first, also where many are of the same millisecond."""
    async with d.reporter():
        for n in range(30):
            at = T0 + 5000 + (0 if n < 20 else n)
            period = held(f"p{n:02}", held_since=at) if n % 3 == 0 else closed(f"p{n:02}", closed_at=at)
            await (d.holds(period) if n % 3 == 0 else d.closes(period))  # type: ignore[arg-type]
        await d.caught_up()
        if whole:
            await eventually(lambda: d.redis.exists(keys.ready("reporter")), bool)
        else:
            d.redis_server.kill()
        everything = [f"p{n:02}" for n in range(30)]
        for limit in (1, 7, 20, 30, 500):
            assert await d.listed("P", limit=limit) == everything
        assert await d.listed("P", limit=4, status="held") == everything[::3]
        assert await d.listed("P", limit=4, session_id="C") == everything


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("get", {}, "invalid"),
    ("get", {"period_id": "a.b"}, "invalid_id"),
    ("list", {"status": "open"}, "invalid"),
    ("list", {"limit": 501}, "invalid"),
    ("list", {"cursor": "x"}, "invalid"),
    ("count", {}, "unknown_verb"),
]


async def test_refused(d: Deployment) -> None:
    """Bad queries are refused with the code of their fault."""
    async with d.reporter():
        for verb, body, code in REFUSED:
            assert (await d.query("P", verb, **body))["error"]["code"] == code, (verb, body)
