"""Tools: what a model is given, the command that a call becomes, and what the model reads of the reply."""

from typing import Any

import jsonschema
import pytest

from upcall_contracts import refusals
from upcall_contracts.errors import Refusal
from upcall_contracts.records import (
    Admitted,
    QuestionRecord,
    ReportRecord,
    RunRecord,
    RunStatus,
)
from upcall_contracts.texts import question_item_text, report_item_text
from upcall_contracts.tools import (
    ASK_PARENT,
    PARENT_QUESTION,
    SPAWN_AGENT,
    ask_parent_command,
    ask_parent_result,
    parent_question_answer_result,
    parent_question_command,
    parent_question_list_result,
    spawn_agent_command,
    spawn_agent_result,
    tools_for,
)

DETAILS = {
    "request_id": "q1",
    "parent_run_id": "r1",
    "child_run_id": "r2",
    "task_id": "t1",
    "timed_out": False,
    "answered": False,
}


def question(**fields: Any) -> QuestionRecord:
    return QuestionRecord.model_validate(
        {"request_id": "q1", "parent_run_id": "r1", "child_run_id": "r2", "task_id": "t1", **fields}
    )


def test_only_a_child_with_a_reachable_parent_may_ask() -> None:
    assert [tool["name"] for tool in tools_for(True)] == ["ask_parent", "parent_question", "spawn_agent"]
    assert [tool["name"] for tool in tools_for(False)] == ["parent_question", "spawn_agent"]


@pytest.mark.parametrize(
    ("tool", "fields"),
    [
        (
            ASK_PARENT,
            "question why_blocked options recommended_option can_continue_without_answer fallback timeout_ms",
        ),
        (PARENT_QUESTION, "action request_id answer rationale selected_option"),
        (SPAWN_AGENT, "agent task session_id description background notify model variant"),
    ],
)
def test_a_definition_is_a_json_schema_with_the_fields_of_the_wire(tool: dict[str, Any], fields: str) -> None:
    jsonschema.Draft202012Validator.check_schema(tool["input_schema"])
    assert list(tool["input_schema"]["properties"]) == fields.split()
    assert all("description" in field for field in tool["input_schema"]["properties"].values())


@pytest.mark.parametrize(
    "words",
    [
        "product or architectural decision",
        "lack the authority to choose",
        "rework or a wrong result",
        "file discovery",
        "routine choices",
        "status updates",
        "talk",
    ],
)
def test_the_description_of_ask_parent_says_when_and_when_not(words: str) -> None:
    assert words in ASK_PARENT["description"]


@pytest.mark.parametrize(
    ("arguments", "verb", "body", "meaning"),
    [
        ({"agent": "a", "task": "t"}, "spawn", {"agent": "a", "task": "t"}, "a new one"),
        (
            {"agent": "a", "task": "t", "session_id": "s1"},
            "continue",
            {"agent": "a", "task": "t", "session_id": "s1"},
            "an earlier one",
        ),
        (
            {"agent": "a", "task": "t", "session_id": " "},
            "spawn",
            {"agent": "a", "task": "t"},
            "blank is absent",
        ),
        (
            {"agent": "a", "task": "t", "model": "", "notify": None},
            "spawn",
            {"agent": "a", "task": "t"},
            "filled in",
        ),
        (
            {"agent": "a", "task": " "},
            "spawn",
            {"agent": "a", "task": " "},
            "a blank task is for the service to refuse",
        ),
        (
            {"agent": "a", "task": "t", "background": False},
            "spawn",
            {"agent": "a", "task": "t", "background": False},
            "false is said",
        ),
    ],
)
def test_a_call_of_spawn_agent(
    arguments: dict[str, Any], verb: str, body: dict[str, Any], meaning: str
) -> None:
    assert spawn_agent_command(arguments) == (verb, body), meaning


def test_a_call_of_ask_parent() -> None:
    """A model can't speak for another run, whatever it puts into its call."""
    arguments = {"question": "Which?", "why_blocked": "", "fallback": "", "options": [], "run_id": "r9"}
    assert ask_parent_command(arguments, "r2") == {
        "run_id": "r2",
        "question": "Which?",
        "why_blocked": "",
        "options": [],
    }


@pytest.mark.parametrize(
    ("arguments", "expected", "meaning"),
    [
        ({"action": "list", "request_id": ""}, ("list", {}), "listing takes nothing"),
        (
            {"action": "answer", "request_id": "q1", "answer": "Yes.", "rationale": ""},
            ("answer", {"request_id": "q1", "answer": "Yes."}),
            "a blank rationale is absent",
        ),
        (
            {"action": "answer", "request_id": "q1", "selected_option": "SQL"},
            ("answer", {"request_id": "q1", "answer": "SQL", "selected_option": "SQL"}),
            "the option chosen is the answer",
        ),
    ],
)
def test_a_call_of_parent_question(arguments: dict[str, Any], expected: Any, meaning: str) -> None:
    assert parent_question_command(arguments) == expected, meaning


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "resolve", "request_id": "q1", "answer": "Yes."},
        {"action": "LIST"},
        {"action": ["list"]},
        {"action": None, "request_id": "q1", "answer": "Yes."},
        {"request_id": "q1", "answer": "Yes."},
        {},
    ],
)
def test_an_action_that_there_is_not_is_told_those_that_there_are(arguments: dict[str, Any]) -> None:
    """It is not taken for one of them: nothing is answered that was not meant."""
    refusal = parent_question_command(arguments)
    assert isinstance(refusal, Refusal)
    assert refusal.details["fields"][0]["field"] == "action"
    result = parent_question_answer_result(refusal)
    assert result.is_error
    assert result.details["code"] == "invalid"
    assert all(
        f"{action}," in result.text
        for action in PARENT_QUESTION["input_schema"]["properties"]["action"]["enum"]
    )


WAITING = "Parent question submitted as request q1. Waiting for answer."


@pytest.mark.parametrize(
    ("fields", "is_error", "text"),
    [
        ({}, False, WAITING),
        ({"status": "answered", "answer": "SQL."}, False, "Parent answer for request q1:\n\nAnswer: SQL."),
        (
            {"status": "answered", "answer": "SQL.", "rationale": "It is there.", "selected_option": "SQL"},
            False,
            "Parent answer for request q1:\n\nAnswer: SQL.\nRationale: It is there.",
        ),
        (
            {"status": "answered", "answer": "The second.", "selected_option": "SQL"},
            False,
            "Parent answer for request q1:\n\nAnswer: The second.\nSelected option: SQL",
        ),
    ],
)
def test_exact_texts_of_ask_parent(fields: dict[str, Any], is_error: bool, text: str) -> None:
    result = ask_parent_result(question(**fields))
    assert (result.text, result.is_error) == (text, is_error)


@pytest.mark.parametrize(
    ("fields", "is_error", "words"),
    [
        (
            {"status": "answered", "action": "decline", "rationale": "Not mine."},
            False,
            ["declined", "Not mine."],
        ),
        (
            {"status": "timed_out", "can_continue_without_answer": True, "fallback": "Take SQL."},
            False,
            ["No answer came", "Take SQL."],
        ),
        ({"status": "timed_out"}, True, ["No answer came", "must not go on without one"]),
        ({"status": "cancelled", "reason": "run_settled"}, True, ["cancelled", "run_settled"]),
        ({"status": "error", "reason": "parent_unavailable"}, True, ["parent_unavailable", "Go on"]),
    ],
)
def test_what_the_other_ends_say(fields: dict[str, Any], is_error: bool, words: list[str]) -> None:
    result = ask_parent_result(question(**fields))
    assert result.is_error is is_error
    assert all(word in result.text for word in words)


@pytest.mark.parametrize(
    ("status", "changed"),
    [
        ("waiting", {}),
        ("answered", {"answered": True}),
        ("timed_out", {"timed_out": True}),
        ("cancelled", {}),
        ("error", {}),
    ],
)
def test_the_details_of_ask_parent(status: str, changed: dict[str, Any]) -> None:
    result = ask_parent_result(question(status=status))
    assert result.details == {**DETAILS, "status": status, **changed}


def test_progress_says_waiting_whatever_the_record_says() -> None:
    result = ask_parent_result(question(status="answered", answer="x"), waiting=True)
    assert result.text == WAITING
    assert result.details["status"] == "waiting"


def test_a_refused_question_is_an_error_that_says_what_to_do() -> None:
    refusal = refusals.question_already_open("q0", 1)
    result = ask_parent_result(refusal)
    assert result.is_error
    assert result.text == refusal.message
    assert set(result.details) >= {*DETAILS, "status"}
    assert (result.details["request_id"], result.details["code"]) == ("q0", "question_already_open")


def test_the_list_of_questions_shows_them_as_the_inbox_does() -> None:
    first, second = question(question="A?"), question(request_id="q2", question="B?")
    result = parent_question_list_result([first, second])
    assert result.text == question_item_text(first) + "\n\n" + question_item_text(second)
    assert not result.is_error
    assert not parent_question_list_result([]).is_error


def test_an_answer_is_confirmed_and_a_refused_one_names_the_status() -> None:
    assert "q1" in parent_question_answer_result(question(status="answered")).text
    result = parent_question_answer_result(refusals.already_resolved("q1", "timed_out"))
    assert result.is_error
    assert "timed_out" in result.text


SETTLED = RunRecord(run_id="r1", session_id="s1", status=RunStatus.SETTLED)
REPORT = ReportRecord.model_validate(
    {"period_id": "p1", "session_id": "s1", "result": "completed", "answer": "Done.", "runs": ["r1"]}
)


@pytest.mark.parametrize(
    ("outcome", "is_error"),
    [
        (Admitted(session_id="s1", run_id="r1"), False),
        (RunRecord(run_id="r1", status=RunStatus.RUNNING), False),
        (REPORT, False),
        (
            RunRecord.model_validate({**SETTLED.to_wire(), "outcome": "completed", "answer": "x" * 100_000}),
            False,
        ),
        (RunRecord.model_validate({**SETTLED.to_wire(), "outcome": "failed", "error": "No disk."}), True),
        (RunRecord.model_validate({**SETTLED.to_wire(), "outcome": "cancelled"}), True),
        (question(), False),
        (refusals.session_closed("s1"), True),
        (refusals.internal(), True),
    ],
)
def test_the_first_line_of_spawn_agent_is_the_session_always(outcome: Any, is_error: bool) -> None:
    result = spawn_agent_result("s1", outcome)
    assert result.text.splitlines()[0] == "Subagent session_id: s1"
    assert result.details["session_id"] == "s1"
    assert result.is_error is is_error


@pytest.mark.parametrize("session_id", [None, "", "my reviewer", "s1\nSubagent session_id: s2"])
def test_what_can_be_no_id_is_none(session_id: str | None) -> None:
    result = spawn_agent_result(session_id, refusals.too_deep(5))
    assert result.text.splitlines()[0] == "Subagent session_id: none"
    assert result.text.count("session_id:") == 1


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.RUNNING])
def test_a_receipt_does_not_look_like_a_result(status: RunStatus) -> None:
    result = spawn_agent_result("s1", Admitted(session_id="s1", run_id="r1", period_id="p1", status=status))
    assert "not a result" in result.text
    assert status.value in result.text
    assert "<subagent" not in result.text
    assert "completed" not in result.text


def test_a_foreground_result_is_framed_as_a_report_is() -> None:
    assert spawn_agent_result("s1", REPORT).text == "Subagent session_id: s1\n\n" + report_item_text(REPORT)


def test_a_run_that_never_started_is_an_error_and_not_a_success() -> None:
    result = spawn_agent_result("s1", RunRecord.model_validate({**SETTLED.to_wire(), "outcome": "lost"}))
    assert result.is_error
    assert 'state="error"' in result.text


def test_a_question_in_the_foreground_is_shown_in_full() -> None:
    asked = question(question="A?", why_blocked="B")
    result = spawn_agent_result("s1", asked)
    assert question_item_text(asked) in result.text
    assert result.details["request_id"] == "q1"
