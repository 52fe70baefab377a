"""Records go over the wire and back, readers ignore what they don't know, and events have their types."""

import pytest
from pydantic import BaseModel

from upcall_contracts import records
from upcall_contracts.base import Record
from upcall_contracts.events import EVENT_TYPES, Event, EventType, Family, Item
from upcall_contracts.records import (
    LateAnswer,
    LateQuestionRecord,
    Outcome,
    QuestionRecord,
    ReportRecord,
    ReportResult,
    RunRecord,
    SessionRecord,
    WorkRecord,
    result_of,
)

FIELDS: dict[type[BaseModel], str] = {
    SessionRecord: "session_id parent_session_id root_session_id depth agent host title model variant notify "
    "status live lease_ms run_id runs period_id pending history_seq created_at updated_at meta",
    RunRecord: "run_id session_id ordinal trigger causes parent_run_id parent_session_id root_session_id "
    "task_id description task agent model variant background notify status outcome attempt holder answer "
    "error step_budget steps timeout_ms history_from history_to period_id queued_at started_at settled_at",
    QuestionRecord: "request_id status created_at updated_at expires_at parent_run_id parent_session_id "
    "child_run_id child_session_id root_session_id task_id agent description question why_blocked "
    "options recommended_option can_continue_without_answer fallback timeout_ms answer rationale "
    "selected_option action answered_at answered_by reason meta",
    ReportRecord: "period_id session_id parent_session_id parent_run_id root_session_id agent description "
    "task_id result outcome answer error runs work pending cancelled status reason for_run held_ms "
    "created_at delivered_at",
    WorkRecord: "work_id session_id run_id kind label wakes outcome summary finished_at",
    LateAnswer: "answer rationale selected_option answered_by stored_at",
    Item: "item_id kind text wakes for_run",
    Event: "event_id type time run_id session_id parent_run_id parent_session_id root_session_id agent "
    "task_id data item",
}


@pytest.mark.parametrize("model", FIELDS)
def test_the_fields_are_those_of_the_wire_in_its_order(model: type[BaseModel]) -> None:
    assert list(model.model_fields) == FIELDS[model].split()


@pytest.mark.parametrize(
    "record",
    [
        SessionRecord(session_id="s1", created_at=1),
        RunRecord(run_id="r1", settled_at=2, outcome=Outcome.LOST),
        QuestionRecord(request_id="q1", expires_at=3, options=["a"], meta={"a": [1]}),
        ReportRecord(period_id="p1", work=[records.WorkItem(id="w1", outcome=Outcome.FAILED)]),
        WorkRecord(work_id="w1", outcome=records.WorkOutcome.LOST),
        LateQuestionRecord(request_id="q1", late=LateAnswer(answer="a", stored_at=5)),
        records.Admitted(session_id="s1", run_id="r1"),
        records.DeadLetter(subject="cmd.a", code="internal", reason="x", time=6),
    ],
)
def test_a_record_goes_over_the_wire_and_back(record: Record) -> None:
    assert type(record).model_validate(record.to_wire()) == record


def test_times_are_numbers_here_and_texts_on_the_wire() -> None:
    record = RunRecord.model_validate(
        {"run_id": "r1", "queued_at": "1970-01-01T00:00:00.005Z", "started_at": 6}
    )
    assert (record.queued_at, record.started_at) == (5, 6)
    assert record.to_wire()["started_at"] == "1970-01-01T00:00:00.006Z"
    assert record.model_dump()["started_at"] == 6


def test_a_reader_ignores_what_it_does_not_know() -> None:
    assert WorkRecord.model_validate({"work_id": "w1", "color": "red"}) == WorkRecord(work_id="w1")


def test_a_message_of_the_history_keeps_what_the_host_put_into_it() -> None:
    raw = {"index": 1, "run_id": "r1", "role": "tool", "content": [{}], "tool_call_id": "t1"}
    assert records.HistoryMessage.model_validate(raw).to_wire() == raw


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_but_two_is_an_error_to_the_parent(outcome: Outcome) -> None:
    special = {Outcome.COMPLETED: ReportResult.COMPLETED, Outcome.CANCELLED: ReportResult.CANCELLED}
    assert result_of(outcome) is special.get(outcome, ReportResult.ERROR)


def test_the_types_of_events() -> None:
    spelled = {f"{family}.{event}": kind.value for (family, event), kind in EVENT_TYPES.items()}
    assert spelled == {
        **{
            f"lifecycle.{event}": f"run_{event}"
            for event in ("queued", "started", "interrupted", "cancel_requested", "backgrounded", "settled")
        },
        "work.finished": "work_finished",
        **{
            f"question.{event}": f"parent_question_{event}"
            for event in ("requested", "answered", "timed_out", "cancelled", "error")
        },
        "question.late": "parent_question_late_answer",
        **{f"report.{event}": f"report_{event}" for event in ("held", "delivered", "suppressed")},
    }
    assert set(EVENT_TYPES.values()) == set(EventType)
    assert {family for family, _ in EVENT_TYPES} == set(Family)


def test_an_event_has_an_item_only_where_it_is_one() -> None:
    event = Event(event_id="e1", type=EventType.RUN_QUEUED, time=1, run_id="r1", session_id="s1")
    assert "item" not in event.to_wire()
    item = Item(item_id="q1", kind=records.ItemKind.QUESTION)
    assert event.model_copy(update={"item": item}).to_wire()["item"]["item_id"] == "q1"
