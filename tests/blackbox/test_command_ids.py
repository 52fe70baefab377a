"""A command_id is one command of its caller's verb, whatever that names: the same id elsewhere is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from .deployment import Deployment
from .wire import OPERATOR, WHY, Claim, Json, Runner, Turn, Wire, eventually, uid

REUSED = "command_id_reused"
Pair = tuple[Turn, Turn]


async def two_held(w: Wire) -> Pair:
    """Two runs of one runner, of children of different parents."""
    runner = Runner(w, uid("agent"))
    claims: list[Claim] = []
    for _ in range(2):
        parent = await w.start(await w.open())
        body: Json = {"agent": runner.agent, "task": "x", "run_id": parent.run_id, "lease_ms": 0}
        await w.do(parent.caller, "session.spawn", **body)
        claims.append(await runner.take(beats=False))
    return claims[0].turn, claims[1].turn


def appending(turn: Turn) -> tuple[str, Json]:
    return "run.append", turn.said({"messages": [{"role": "assistant", "content": "Hm."}]})


def spawning(turn: Turn) -> tuple[str, Json]:
    return "session.spawn", {"agent": "worker", "task": "x", "host": "self", "run_id": turn.run_id}


def asking(turn: Turn) -> tuple[str, Json]:
    return "question.ask", turn.asking("Which database?", {})


def settling(turn: Turn) -> tuple[str, Json]:
    return "run.settle", turn.said({"outcome": "completed"})


VERBS: dict[str, Callable[[Turn], tuple[str, Json]]] = {
    "append": appending,
    "spawn": spawning,
    "ask": asking,
    "settle": settling,
}


async def say(w: Wire, turn: Turn, verb: str, command_id: str) -> Json:
    command, body = VERBS[verb](turn)
    return await w.reply_to(f"cmd.{turn.caller}.{command}", {**body, "command_id": command_id})


def codes(replies: list[Json]) -> list[str]:
    return ["ok" if reply["ok"] else reply["error"]["code"] for reply in replies]


@pytest.mark.parametrize("verb", list(VERBS))
async def test_id_is_reused_for_another_run(w: Wire, verb: str) -> None:
    """One after the other: the second is refused, and changes nothing."""
    one, two = await two_held(w)
    command_id = uid("call")
    assert codes([await say(w, one, verb, command_id)]) == ["ok"]
    before = await w.session(two.session_id)
    assert codes([await say(w, two, verb, command_id)]) == [REUSED]
    assert await w.session(two.session_id) == before
    assert codes([await say(w, one, verb, command_id)]) == ["ok"]


@pytest.mark.parametrize("verb", ["append", "spawn", "ask"])
async def test_id_is_used_for_two_runs_at_once(w: Wire, verb: str) -> None:
    """In the same instant, at two instances: one of them is carried out."""
    one, two = await two_held(w)
    for n in range(10):
        command_id = uid("call")
        replies = await asyncio.gather(*(say(w, turn, verb, command_id) for turn in (one, two)))
        assert Counter(codes(list(replies))) == Counter(["ok", REUSED]), n
        if verb == "ask":
            asked = replies[0 if replies[0]["ok"] else 1]["result"]["question"]
            await w.do(OPERATOR, "question.cancel", request_id=asked["request_id"])


@pytest.mark.faults
@pytest.mark.parametrize("verb", ["ask", "spawn"])
async def test_id_is_reused_just_when_redis_was_emptied(
    quick_deployment: Deployment, quick: Wire, verb: str
) -> None:
    """What would be made twice is found in the log: no two questions or sessions have one id."""
    one, two = await two_held(quick)
    command_id = uid("call")
    assert codes([await say(quick, one, verb, command_id)]) == ["ok"]
    quick_deployment.flush_redis()
    assert codes([await say(quick, two, verb, command_id)]) == [REUSED]
    assert (await quick.session(two.session_id))["pending"] == []
    assert codes([await say(quick, one, verb, command_id)]) == ["ok"]


async def test_refused_id_is_free(w: Wire) -> None:
    """A refusal is not remembered: the same id may be used at once for something else."""
    one, two = await two_held(w)
    await one.settle()
    for verb in ("append", "spawn", "ask"):
        command_id = uid("call")
        assert codes([await say(w, one, verb, command_id)]) == ["run_not_active"]
        assert codes([await say(w, two, verb, command_id)]) == ["ok"]


async def test_operator_continues_two_sessions_with_one_id(w: Wire) -> None:
    """No two sessions have a run of the same id."""
    _, one = await w.family()
    _, two = await w.family()
    for turn in (one, two):
        await turn.settle()

    async def go_on(turn: Turn, command_id: str) -> Json:
        body = {"session_id": turn.session_id, "task": "More.", "command_id": command_id}
        return await w.reply_to(f"cmd.{OPERATOR}.session.continue", body)

    for _ in range(5):
        command_id = uid("call")
        replies = list(await asyncio.gather(*(go_on(turn, command_id) for turn in (one, two))))
        assert Counter(codes(replies)) == Counter(["ok", REUSED])
        made = replies[0 if replies[0]["ok"] else 1]["result"]
        session_id = made["session_id"]
        await Turn(w, session_id, session_id, made["run_id"], made["period_id"]).settle()


async def answer(w: Wire, request_id: str, command_id: str) -> Json:
    body = {"request_id": request_id, "answer": "Postgres.", "command_id": command_id}
    return await w.reply_to(f"cmd.{OPERATOR}.question.answer", body)


async def cancel(w: Wire, request_id: str, command_id: str) -> Json:
    body = {"request_id": request_id, "command_id": command_id}
    return await w.reply_to(f"cmd.{OPERATOR}.question.cancel", body)


@pytest.mark.parametrize("end", [answer, cancel])
async def test_id_ends_questions_of_two_runs(
    w: Wire, end: Callable[[Wire, str, str], Awaitable[Json]]
) -> None:
    """One after the other and at once: one question is ended by it, and the other one waits on."""
    pair = [child for _, child in (await w.family(), await w.family())]
    for at_once in (False, True):
        asked = [(await turn.ask())["request_id"] for turn in pair]
        command_id = uid("call")
        ends = [end(w, request_id, command_id) for request_id in asked]
        replies = list(await asyncio.gather(*ends)) if at_once else [await each for each in ends]
        assert Counter(codes(replies)) == Counter(["ok", REUSED])
        left = asked[codes(replies).index(REUSED)]
        assert (await w.question(left))["status"] == "waiting"
        assert codes([await end(w, left, uid("call"))]) == ["ok"]


async def test_command_id_passes_for_no_sequence(w: Wire) -> None:
    """A command without an id has a name of its own, which no command_id can spell."""
    session_id = await w.open()
    sent = await w.publish(f"cmd.{session_id}.run.start", {})
    found = await eventually(lambda: w.session(session_id), lambda session: session["run_id"])
    await w.do(session_id, "run.settle", run_id=found["run_id"], outcome="completed")
    for name in (f"seq:{sent.seq}", f"{sent.seq}", f"#{sent.seq}"):
        turn = await w.start(session_id, command_id=name)
        assert turn.run_id != found["run_id"]
        await turn.settle()


async def test_one_id_asks_only_one_of_two_runs_over_a_long_time(w: Wire) -> None:
    """Also when many other commands came in between, which the state has forgotten."""
    one, two = await two_held(w)
    command_id = uid("call")
    assert codes([await say(w, one, "append", command_id)]) == ["ok"]
    for _ in range(20):
        await one.append("Hm.", command_id=uid("call"))
    assert codes([await say(w, two, "append", command_id)]) == [REUSED]
    body = {"question": "Why?", "why_blocked": WHY, "run_id": two.run_id, "attempt": two.attempt}
    asked = await w.do(two.caller, "question.ask", command_id=command_id, **body)
    assert asked["question"]["status"] == "waiting", "another verb, another command"
