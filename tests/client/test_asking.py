"""A question is asked once and its end is heard, whatever is lost on the way."""

import asyncio
from typing import Any

import pytest

import upcall
from tests.settling import settle
from upcall import asking
from upcall.asking import Asker
from upcall_contracts import refusals, times
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import derive_id
from upcall_contracts.records import Action, QuestionRecord, QuestionStatus

from .conftest import Server, Services

BODY = {"question": "Keep v1?", "why_blocked": "Clients."}


class Broker:
    """The questions of one run, as the broker would keep them."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.questions: dict[str, QuestionRecord] = {}
        self.commands: dict[str, str] = {}
        self.tell = True
        services.script = self.handle

    def handle(self, name: str, body: dict[str, Any]) -> dict[str, Any] | Refusal:
        match name:
            case "question.ask":
                return self.ask(body)
            case "question.get":
                return {"question": self.questions[body["request_id"]].to_wire()}
            case "question.cancel":
                return self.cancel(body["request_id"])
            case _:
                raise AssertionError(name)

    def ask(self, body: dict[str, Any]) -> dict[str, Any] | Refusal:
        command_id = body["command_id"]
        waiting = [q for q in self.questions.values() if q.status is QuestionStatus.WAITING]
        if command_id not in self.commands:
            if waiting:
                return refusals.question_already_open(waiting[0].request_id, 1)
            request_id = f"q{len(self.questions) + 1}"
            self.commands[command_id] = request_id
            self.questions[request_id] = QuestionRecord(
                request_id=request_id,
                question=body["question"],
                fallback=body.get("fallback"),
                can_continue_without_answer=body.get("can_continue_without_answer", False),
                expires_at=times.from_wire("2099-01-01T00:00:00Z"),
            )
        return {"question": self.questions[self.commands[command_id]].to_wire()}

    def cancel(self, request_id: str) -> dict[str, Any]:
        self.questions[request_id] = self.questions[request_id].model_copy(
            update={"status": QuestionStatus.CANCELLED}
        )
        return {"question": self.questions[request_id].to_wire()}

    async def end(self, request_id: str, event: str = "answered", **fields: Any) -> None:
        """Bring a question to an end, and publish it as JetStream republishes the topic."""
        question = self.questions[request_id].model_copy(update={"status": QuestionStatus(event), **fields})
        self.questions[request_id] = question
        if self.tell:
            body = {
                "event_id": f"e-{request_id}-{event}",
                "type": f"parent_question_{event}",
                "time": "2026-01-01T00:00:00.000Z",
                "run_id": "r1",
                "session_id": "s1",
                "data": question.to_wire(),
            }
            await self.services.publish(f"run.r1.question.{request_id}.{event}", body)

    async def until_asked(self, times: int = 1) -> None:
        async with asyncio.timeout(5):
            while len([name for name, _ in self.services.seen if name == "question.ask"]) < times:
                self.services.asked.clear()
                await self.services.asked.wait()


@pytest.fixture
def broker(services: Services) -> Broker:
    return Broker(services)


def asker(up: upcall.Upcall, *earlier: QuestionRecord, caller: str = "runner-1") -> Asker:
    return Asker(up.wire, caller, "r1", 1, earlier)


async def test_the_event_ends_the_wait(up: upcall.Upcall, broker: Broker) -> None:
    asking_ = asyncio.create_task(asker(up).ask(BODY))
    await broker.until_asked()
    await broker.end("q1", answer="yes")

    question = await asyncio.wait_for(asking_, 1)

    assert question.answer == "yes"
    assert [name for name, _ in broker.services.seen] == ["question.ask"]


async def test_an_end_before_the_reply_to_the_ask_is_not_missed(up: upcall.Upcall, broker: Broker) -> None:
    one = asker(up)
    question = await one.submit(BODY)
    await broker.end("q1", answer="yes")
    await settle(up.wire.nc)

    assert (await asyncio.wait_for(one.until_ended(question), 1)).answer == "yes"


async def test_a_lost_event_is_found_by_looking(
    up: upcall.Upcall, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_LOOK_AFTER", (0.2,))
    broker.tell = False
    asking_ = asyncio.create_task(asker(up).ask(BODY))
    await broker.until_asked()
    await broker.end("q1", answer="yes")

    assert (await asyncio.wait_for(asking_, 2)).answer == "yes"


async def test_an_end_while_nats_was_away_is_found_after_the_reconnect(
    up: upcall.Upcall, broker: Broker, server: Server
) -> None:
    asking_ = asyncio.create_task(asker(up).ask(BODY))
    await broker.until_asked()
    await asyncio.sleep(0.1)
    await server.stop()
    broker.tell = False
    await broker.end("q1", answer="yes")
    await server.start()

    assert (await asyncio.wait_for(asking_, 4)).answer == "yes"


async def test_a_process_that_starts_over_asks_the_same(up: upcall.Upcall, broker: Broker) -> None:
    """The second asker is a new process with the same runner id: the same question, asked once."""
    first, second = asker(up), asker(up)

    assert (await first.submit(BODY)).request_id == (await second.submit(BODY)).request_id
    assert len(broker.questions) == 1


async def test_the_tool_calls_id_names_the_question_whatever_its_text(
    up: upcall.Upcall, broker: Broker
) -> None:
    await asker(up).submit(BODY, "call-1")

    assert list(broker.commands) == [derive_id("ask-", "r1", "key", "call-1")]


async def test_two_questions_of_a_run_have_two_command_ids(up: upcall.Upcall, broker: Broker) -> None:
    one = asker(up)
    for request_id in ("q1", "q2"):
        question = await one.submit(BODY)
        assert question.request_id == request_id
        await broker.end(request_id)
        await one.until_ended(question)


async def test_another_runner_takes_up_the_question_that_the_claim_hands_over(
    up: upcall.Upcall, broker: Broker
) -> None:
    await asker(up, caller="runner-1").submit(BODY)
    asking_ = asyncio.create_task(asker(up, broker.questions["q1"], caller="runner-2").ask(BODY))
    await asyncio.sleep(0.1)
    await broker.end("q1", answer="yes")

    assert (await asyncio.wait_for(asking_, 1)).answer == "yes"
    assert len(broker.questions) == 1


async def test_an_answer_that_came_while_nobody_held_the_run_is_not_asked_for_again(
    up: upcall.Upcall, broker: Broker
) -> None:
    answered = QuestionRecord(
        request_id="q0", question=BODY["question"], status=QuestionStatus.ANSWERED, answer="yes"
    )

    assert (await asker(up, answered).ask(BODY)).answer == "yes"
    assert broker.questions == {}


async def test_a_question_that_was_given_up_makes_way_for_another(up: upcall.Upcall, broker: Broker) -> None:
    one = asker(up)
    given_up = asyncio.create_task(one.ask(BODY))
    await broker.until_asked()
    await asyncio.sleep(0.1)
    given_up.cancel()
    asking_ = asyncio.create_task(one.ask({"question": "Drop v2?", "why_blocked": "Nobody uses it."}))
    await broker.until_asked(3)
    await broker.end("q2", answer="yes")

    assert (await asyncio.wait_for(asking_, 1)).request_id == "q2"
    assert broker.questions["q1"].status is QuestionStatus.CANCELLED


async def test_a_second_question_at_the_same_time_is_refused(up: upcall.Upcall, broker: Broker) -> None:
    one = asker(up)
    first = asyncio.create_task(one.ask(BODY))
    await broker.until_asked()
    await asyncio.sleep(0.1)

    with pytest.raises(upcall.AlreadyAskedError):
        await one.ask({"question": "Drop v2?", "why_blocked": "Nobody uses it."})

    await broker.end("q1", answer="yes")
    assert (await asyncio.wait_for(first, 1)).answer == "yes"


@pytest.mark.parametrize(
    ("record", "error", "says"),
    [
        ({"status": "timed_out"}, upcall.QuestionTimedOutError, "must not go on without"),
        ({"status": "cancelled", "reason": "run_settled"}, upcall.QuestionCancelledError, "run_settled"),
        ({"status": "error", "reason": "parent_unavailable"}, upcall.ParentGoneError, "parent_unavailable"),
    ],
)
def test_ends_without_which_the_child_may_not_go_on_are_raised(
    record: dict[str, Any], error: type[upcall.NoAnswerError], says: str
) -> None:
    question = QuestionRecord.model_validate({"request_id": "q1", **record})

    with pytest.raises(error, match=says):
        asking.answer_of(question)


def test_an_answer_reads_as_its_text() -> None:
    question = QuestionRecord(
        request_id="q1",
        status=QuestionStatus.ANSWERED,
        answer="keep v1",
        rationale="pinned",
        selected_option="keep",
    )
    answer = asking.answer_of(question)

    assert (str(answer), answer.rationale, answer.option) == ("keep v1", "pinned", "keep")
    assert not answer.declined
    assert not answer.timed_out


def test_declined_is_an_answer() -> None:
    question = QuestionRecord(request_id="q1", status=QuestionStatus.ANSWERED, action=Action.DECLINE)

    assert asking.answer_of(question).declined


def test_timed_out_with_a_fallback_is_the_fallback() -> None:
    question = QuestionRecord(
        request_id="q1",
        status=QuestionStatus.TIMED_OUT,
        can_continue_without_answer=True,
        fallback="keep both",
    )
    answer = asking.answer_of(question)

    assert answer.timed_out
    assert answer.text == "keep both"
