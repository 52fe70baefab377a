"""A client of an earlier release against today's services: what it sends and gets, by its own schemas."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from .deployment import Deployment
from .wire import OPERATOR, Json, Runner, Turn, Wire, uid

RELEASED = Path(__file__).parents[1] / "contracts" / "released"
RELEASES = sorted(path.stem for path in RELEASED.glob("*.json"))


class Earlier(Wire):
    """A connection that holds each message against the schemas of a release."""

    schemas: dict[str, Json]

    def __init__(self, nc: Any) -> None:
        super().__init__(nc)
        self.said: set[str] = set()
        self.heard: set[str] = set()

    async def reply_to(self, subject: str, body: Json | bytes, **options: Any) -> Json:
        return self._exchanged("commands", subject, body, await super().reply_to(subject, body, **options))

    async def request(self, subject: str, body: Json, **options: Any) -> Json:
        return self._exchanged("queries", subject, body, await super().request(subject, body, **options))

    def _exchanged(self, kind: str, subject: str, body: Json | bytes, reply: Json) -> Json:
        path = f"{kind}/{subject.split('.', 2)[2]}"
        self._check(f"{path}.json", body)
        self._check(f"{path}.reply.json" if reply["ok"] else "errors/reply.json", reply)
        self.said.add(f"{path}.json")
        return reply

    def event(self, body: Json) -> None:
        """One event as it stands on a topic or in an inbox."""
        self._check(f"events/{body['type']}.json", body)
        self.heard.add(f"events/{body['type']}.json")

    def _check(self, path: str, message: Any) -> None:
        jsonschema.Draft202012Validator(self.schemas[path]).validate(message)


@pytest_asyncio.fixture(loop_scope="function", params=RELEASES)
async def e(request: pytest.FixtureRequest, deployment: Deployment) -> AsyncIterator[Earlier]:
    wire = await Earlier.connect(deployment.nats_url)
    assert isinstance(wire, Earlier)
    wire.schemas = json.loads((RELEASED / f"{request.param}.json").read_text())
    yield wire
    await wire.close()


async def test_every_command_query_and_event_is_as_it_was_released(e: Earlier) -> None:
    parent = await e.start(await e.open())
    runs = [parent, *await _questions(e, parent), *await _reports(e, parent), *await _runners(e, parent)]
    await _queries(e, parent, runs[1])
    runs += await _a_parent_that_closes(e)
    for turn in runs:
        for seen in await e.history(turn.run_id):
            e.event(seen.body)
    for session_id in {turn.session_id for turn in runs}:
        for body in await e.inbox(session_id):
            e.event(body)
    of_release = e.schemas.keys()
    requests = {path for path in of_release if path.startswith(("commands/", "queries/"))}
    assert {path for path in requests if not path.endswith(".reply.json")} - e.said == set()
    assert {path for path in of_release if path.startswith("events/")} - e.heard == set()


async def _questions(e: Earlier, parent: Turn) -> list[Turn]:
    """A question for each end, and a late answer."""
    child = await parent.spawn(description="Build orders", task_id="T-1")
    await child.append("Reading.", steps=1)
    options = {"options": ["PostgreSQL", "SQLite"], "recommended_option": "SQLite"}
    answered = await child.ask(**options, meta={"tool": "ask"})
    await e.query(parent.caller, "question.list", scope="mine")
    await e.query(child.caller, "question.wait", request_id=answered["request_id"], timeout_ms=1)
    await parent.answer(answered["request_id"], "SQLite.", selected_option="SQLite", rationale="One writer.")
    may_go_on = {"can_continue_without_answer": True, "fallback": "SQLite."}
    timed_out = await child.ask("Which cache?", timeout_ms=50, **may_go_on)
    await e.until_question(timed_out["request_id"], "timed_out")
    late = {"request_id": timed_out["request_id"], "answer": "None."}
    await e.refused("already_resolved", parent.caller, "question.answer", **late)
    declined = await child.ask("Which licence?")
    await parent.answer(declined["request_id"], action="decline")
    cancelled = await child.ask("Which port?")
    await e.do(child.caller, "question.cancel", request_id=cancelled["request_id"], reason="Found it.")
    await child.settle()
    return [child]


async def _reports(e: Earlier, parent: Turn) -> list[Turn]:
    """A report that is held and delivered, one that is released, and one that is suppressed."""
    child = await parent.spawn()
    work = {"work_id": uid("job"), "kind": "shell", "label": "make test"}
    await child.settle(background=[work])
    await child.report("held")
    await child.finish(work["work_id"], summary="3 passed")
    item = await child.report()
    await e.do(parent.caller, "inbox.handle", item_ids=[item["period_id"]])
    again = await parent.proceed(child)
    await again.settle(background=[{**work, "work_id": uid("job")}])
    await again.report("held")
    await e.do(OPERATOR, "report.release", session_id=again.session_id)
    silent = await parent.spawn(notify=False)
    await silent.settle("failed", error="It did not build.")
    await silent.report("suppressed")
    foreground = await parent.spawn(background=False)
    await e.do(parent.caller, "session.background", run_id=foreground.run_id)
    await e.do(parent.caller, "session.cancel", session_id=foreground.session_id, reason="No need.")
    await foreground.settle("cancelled")
    await foreground.report()
    return [child, again, silent, foreground]


async def _runners(e: Earlier, parent: Turn) -> list[Turn]:
    """A run that changes hands, since its first holder stops beating."""
    runner = Runner(e, uid("agent"))
    spawn = {"agent": runner.agent, "task": "Build.", "run_id": parent.run_id, "lease_ms": 1000}
    await e.do(parent.caller, "session.spawn", **spawn)
    await runner.take(beats=False)
    claim = await runner.take()
    await claim.turn.settle()
    await claim.turn.report()
    return [claim.turn]


async def _queries(e: Earlier, parent: Turn, child: Turn) -> None:
    """What the rest of the way did not ask."""
    await e.query(parent.caller, "session.list", scope="tree")
    await e.query(parent.caller, "session.history", session_id=child.session_id)
    await e.query(parent.caller, "session.get", session_id=child.session_id)
    await e.query(parent.caller, "run.get", run_id=child.run_id)
    await e.query(parent.caller, "run.wait", run_id=child.run_id, timeout_ms=1000)
    await e.query(parent.caller, "report.list")
    await e.query(parent.caller, "inbox.list")
    await e.query(parent.caller, "log.introspect", root_session_id=parent.session_id)


async def _a_parent_that_closes(e: Earlier) -> list[Turn]:
    """Its child's question ends as error, and the child goes on."""
    parent = await e.start(await e.open())
    child = await parent.spawn()
    question = await child.ask()
    await e.do(parent.caller, "session.close", cascade=False)
    await e.until_question(question["request_id"], "error")
    await child.settle()
    await child.report("suppressed")
    return [parent, child]
