"""The client against everything, real: what a harness relies on."""

import asyncio
from uuid import uuid4

import pytest

import upcall
from upcall.watch import Watch
from upcall_contracts.records import Outcome, RunStatus, WorkOutcome

from .agents import WHY


@pytest.fixture
async def parent(live: upcall.Upcall, runner: upcall.Runner) -> upcall.Session:
    return await live.open_session(f"p-{uuid4().hex}", agent="planner")


async def next_item(parent: upcall.Session | upcall.Run) -> upcall.Item:
    """The first thing that a fresh reader of the inbox finds."""
    async with parent.inbox() as inbox:
        item = await inbox.next(15)
        assert item is not None
        return item


async def until(child: upcall.Child, status: RunStatus) -> None:
    """Look until the run is there."""
    async with asyncio.timeout(15):
        while (await child.run()).status is not status:  # noqa: ASYNC110 - somebody else's state
            await asyncio.sleep(0.02)


async def test_a_question_is_answered_and_the_child_goes_on_in_the_same_run(parent: upcall.Session) -> None:
    child = await parent.spawn("asks", "Keep v1?")
    async with parent.inbox() as inbox:
        question = await inbox.next(15)
        assert isinstance(question, upcall.Question)
        assert (question.question, question.record.why_blocked) == ("Keep v1?", WHY)
        assert question.record.child_run_id == child.run_id
        assert question.text.startswith(f"[subagent question {question.request_id}]\nChild task: Keep v1?")
        await question.answer("keep it", option="keep", rationale="pinned")

        report = await inbox.next(15)
        assert isinstance(report, upcall.Report)
        assert (report.answer, report.ok) == ("keep in attempt 1: keep it", True)
        assert report.record.runs == [child.run_id]
        await report.handle()
        assert await inbox.next(0.3) is None

    async with parent.inbox() as fresh:
        assert await fresh.next(0.5) is None


async def test_an_inbox_that_starts_late_finds_what_waits(parent: upcall.Session) -> None:
    children = [await parent.spawn("echo", f"task {n}") for n in range(5)]
    for child in children:
        await child.run()
    async with asyncio.timeout(20):
        seen: list[upcall.Report] = []
        async with parent.inbox() as inbox:
            async for item in inbox:
                assert isinstance(item, upcall.Report)
                seen.append(item)
                if len(seen) == 5:
                    break
    assert {report.session_id for report in seen} == {child.session_id for child in children}
    again = await next_item(parent)
    assert again.item_id in {report.item_id for report in seen}


async def test_wait_in_the_foreground_gives_the_question_then_the_result(parent: upcall.Session) -> None:
    async with await parent.start("work") as run:
        seen = await run.call("asks", "Keep v1?")
        assert isinstance(seen, upcall.Question)
        assert (await seen.child.wait()) == seen
        await seen.answer(option="drop")
        result = await seen.child.wait()
        assert isinstance(result, upcall.Result)
        assert result.answer == "drop in attempt 1: drop"
    async with parent.inbox() as inbox:
        assert await inbox.next(0.5) is None, "the result came inline, and is no item as well"


async def test_wait_for_a_background_child_takes_its_report(parent: upcall.Session) -> None:
    child = await parent.spawn("echo", "this")

    result = await child.result()

    assert (result.ok, result.answer) == (True, "did this")
    async with parent.inbox() as inbox:
        assert await inbox.next(0.5) is None


async def test_a_result_past_its_questions(parent: upcall.Session) -> None:
    asked: list[str] = []

    async def answer(question: upcall.Question) -> None:
        asked.append(question.question)
        await question.answer(option="keep")

    child = await parent.spawn("asks", "Keep v1?", background=False)

    assert (await child.result(answer)).answer == "keep in attempt 1: keep"
    assert asked == ["Keep v1?"]


async def test_wait_all_counts_failures(parent: upcall.Session) -> None:
    children = [await parent.spawn(agent, "this") for agent in ("echo", "fails", "echo")]

    results = await parent.wait_all(children)

    assert (results.succeeded, results.failed, results.ok) == (2, 1, False)
    assert [result.ok for result in results] == [True, False, True]
    assert results[1].error == "RuntimeError: could not do this"
    assert results.text.startswith("2 of 3 subagents completed, 1 did not.")
    with pytest.raises(upcall.ChildrenFailedError, match="2 of 3"):
        results.check()


async def test_continue_keeps_the_session_and_its_history(parent: upcall.Session) -> None:
    child = await parent.spawn("steps", "first")
    await child.result()
    again = await child.continue_("second")
    assert (again.session_id, again.run_id != child.run_id) == (child.session_id, True)
    await again.result()

    history = await child.history()

    assert [message.index for message in history] == list(range(1, 23))
    assert [message.content for message in history if message.role == "user"] == ["first", "second"]
    assert {message.run_id for message in history} == {child.run_id, again.run_id}


async def test_declined_reaches_the_child(parent: upcall.Session) -> None:
    child = await parent.spawn("asks", "Keep v1?")
    question = await next_item(parent)
    assert isinstance(question, upcall.Question)
    await question.decline("not mine to say")

    assert (await child.result()).answer.startswith("None in attempt 1")


async def test_an_answer_too_late_says_how_it_ended(parent: upcall.Session) -> None:
    child = await parent.spawn("asks", "Keep v1?")
    question = await next_item(parent)
    assert isinstance(question, upcall.Question)
    await child.cancel()

    await child.result()

    with pytest.raises(upcall.AlreadyResolvedError, match="cancelled"):
        await question.answer(option="keep")


async def test_an_option_that_was_not_offered_is_refused_and_the_question_stays(
    parent: upcall.Session,
) -> None:
    child = await parent.spawn("asks", "Keep v1?")
    question = await next_item(parent)
    assert isinstance(question, upcall.Question)

    with pytest.raises(upcall.UnknownOptionError, match="letter by letter"):
        await question.answer(option="sell")

    assert [waiting.request_id for waiting in await parent.questions()] == [question.request_id]
    await child.cancel()


async def test_cancel_ends_the_handler_and_settles_as_cancelled(parent: upcall.Session) -> None:
    child = await parent.spawn("sleeps", "long")
    await until(child, RunStatus.RUNNING)

    assert await child.cancel("enough") == [child.run_id]

    result = await child.result()
    assert result.outcome is Outcome.CANCELLED
    run = await child.run()
    assert (run.settled_at or 0) - (run.started_at or 0) < 1900, "by its host, not after the grace"


async def test_a_cancel_that_was_not_heard_is_read_again(
    parent: upcall.Session, runner: upcall.Runner
) -> None:
    """As after a reconnect: what was published in between did not arrive."""
    child = await parent.spawn("stubborn", "long")
    await until(child, RunStatus.RUNNING)
    await child.cancel()
    deaf = Watch(parent.wire, runner.id, child.run_id)

    await deaf.look()

    assert deaf.cancelled
    assert (await child.result()).outcome is Outcome.CANCELLED


async def test_a_used_up_budget_halts(parent: upcall.Session) -> None:
    child = await parent.spawn("steps", "many", step_budget=3)

    result = await child.result()

    assert result.outcome is Outcome.HALTED
    assert [m.content for m in await child.history() if m.role == "assistant"] == [
        "step 0",
        "step 1",
        "step 2",
    ]


async def test_a_time_limit_stops_the_handler(parent: upcall.Session) -> None:
    child = await parent.spawn("sleeps", "long", timeout_ms=700)

    assert (await child.result()).outcome is Outcome.TIMED_OUT


async def test_the_report_waits_for_what_the_run_left_running(parent: upcall.Session) -> None:
    child = await parent.spawn("leaves", "test it")
    await until(child, RunStatus.SETTLED)
    session = await child.session()
    assert [item.label for item in session.pending] == ["test suite"]

    result = await child.result()

    assert [(item.label, item.outcome) for item in result.record.work] == [
        ("test suite", WorkOutcome.COMPLETED)
    ]
    assert result.record.held_ms > 100


async def test_a_run_can_be_a_parent(parent: upcall.Session) -> None:
    child = await parent.spawn("boss", "all of it")

    assert (await child.result()).answer == "did part 1 and did part 2"
    tree = await parent.tree()
    assert sorted((session.depth, session.agent) for session in tree) == [
        (0, "planner"),
        (1, "boss"),
        (2, "echo"),
        (2, "echo"),
    ]


async def test_a_self_child_is_carried_out_by_its_caller(parent: upcall.Session) -> None:
    child = await parent.spawn("helper", "do it", host="self")
    async with await child.carry_out() as run:
        asking = asyncio.create_task(run.ask_parent("Which?", "Both fit.", timeout_ms=60_000))
        question = await next_item(parent)
        assert isinstance(question, upcall.Question)
        await question.answer("the left one")
        run.output = str(await asking)

    assert (await child.result()).answer == "the left one"


async def test_leaving_a_run_by_an_exception_settles_it_as_failed(parent: upcall.Session) -> None:
    run = await parent.start("divide")
    with pytest.raises(ZeroDivisionError):
        async with run:
            raise ZeroDivisionError("division by zero")
    assert run.record.outcome is Outcome.FAILED
    assert run.record.error == "ZeroDivisionError: division by zero"


async def test_an_answer_that_is_too_long_fails_the_run_instead_of_losing_it(parent: upcall.Session) -> None:
    result = await (await parent.spawn("big", "it")).result()

    assert result.outcome is Outcome.FAILED
    assert "refused" in (result.error or "")


async def test_timed_out_with_a_fallback_goes_on(parent: upcall.Session) -> None:
    child = await parent.spawn("helper", "do it", host="self")
    async with await child.carry_out() as run:
        answer = await run.ask_parent("Which?", "Both fit.", fallback="take the left", timeout_ms=300)
        assert (answer.timed_out, answer.text) == (True, "take the left")
        with pytest.raises(upcall.QuestionTimedOutError):
            await run.ask_parent("Really?", "It matters.", timeout_ms=300)


async def test_a_top_level_run_has_nobody_to_ask(parent: upcall.Session) -> None:
    async with await parent.start("alone") as run:
        assert "ask_parent" not in [tool["name"] for tool in run.tools()]
        with pytest.raises(upcall.NoParentError):
            await run.ask_parent("Which?", "Both fit.")


async def test_tools_of_both_sides(parent: upcall.Session) -> None:
    spawned = await parent.call_tool("spawn_agent", {"agent": "helper", "task": "do it"}, tool_call_id="t1")
    again = await parent.call_tool("spawn_agent", {"agent": "helper", "task": "do it"}, tool_call_id="t1")
    assert spawned.text.startswith(f"Subagent session_id: {spawned.details['session_id']}")
    assert again.details == spawned.details, "the same call has no second effect"

    child = await parent.spawn("helper", "do it", host="self")
    async with await child.carry_out() as run:
        call = {"question": "Which?", "why_blocked": "Both fit.", "options": ["left", "right"]}
        asking = asyncio.create_task(run.call_tool("ask_parent", call, tool_call_id="c1"))
        question = await next_item(parent)
        listed = await parent.call_tool("parent_question", {"action": "list"})
        assert question.text == listed.text
        request_id = listed.details["questions"][0]["request_id"]
        wrong = await parent.call_tool(
            "parent_question", {"action": "answer", "request_id": request_id, "selected_option": "up"}
        )
        assert wrong.is_error
        assert wrong.details["code"] == "unknown_option"
        unknown = await parent.call_tool(
            "parent_question", {"action": "resolve", "request_id": request_id, "selected_option": "left"}
        )
        assert unknown.is_error
        assert "list" in unknown.text
        assert "answer" in unknown.text
        assert len(await parent.questions()) == 1, "and nothing is answered"
        await parent.call_tool(
            "parent_question", {"action": "answer", "request_id": request_id, "selected_option": "left"}
        )
        result = await asking
        assert result.text == f"Parent answer for request {request_id}:\n\nAnswer: left"
        assert result.details["answered"]
        repeated = await run.call_tool("ask_parent", call, tool_call_id="c1")
        assert repeated == result, "made again after a restart, it is the same question"
        missing = await run.call_tool("ask_parent", {"question": "x"})
        assert missing.is_error
        assert "why_blocked" in missing.text


async def test_foreground_by_tool_gives_the_result_inline(parent: upcall.Session) -> None:
    async with await parent.start("work") as run:
        call = {"agent": "echo", "task": "this", "background": False}
        result = await run.call_tool("spawn_agent", call)
        assert not result.is_error
        assert "did this" in result.text
        refused = await run.call_tool("spawn_agent", {**call, "session_id": "nobody"})
        assert refused.text.startswith("Subagent session_id: nobody")
        assert refused.is_error
    async with parent.inbox() as inbox:
        assert await inbox.next(0.5) is None


async def test_a_silent_child_can_be_waited_for_and_is_no_item(parent: upcall.Session) -> None:
    child = await parent.spawn("echo", "this", notify=False)

    assert (await child.result()).answer == "did this"
    async with parent.inbox() as inbox:
        assert await inbox.next(0.5) is None


async def test_a_foreground_child_may_be_sent_to_the_background(parent: upcall.Session) -> None:
    """Nobody waits for its result any more, so it becomes an item."""
    async with await parent.start("work"):
        child = await parent.spawn("asks", "Keep v1?", background=False)
        question = await child.wait()
        assert isinstance(question, upcall.Question)
        assert (await child.background()).background
        await question.answer(option="keep")
        async with parent.inbox() as inbox:
            report = await inbox.next(15)
    assert isinstance(report, upcall.Report)
    assert report.session_id == child.session_id


async def test_a_held_report_can_be_released(parent: upcall.Session) -> None:
    child = await parent.spawn("helper", "do it", host="self")
    async with await child.carry_out() as run:
        deploying = run.background("deploy", kind="other")
        run.output = "it deploys"
    while (held := await child.report()) is None:  # noqa: ASYNC110 - the reporter says it in its own time
        await asyncio.sleep(0.02)
    assert held.reason == "work_pending"

    released = await child.release("no time")

    assert [item.label for item in released.pending] == ["deploy"]
    assert (await child.result()).answer == "it deploys"
    async with deploying:
        deploying.summary = "deployed"
    assert deploying.ended.is_set()


async def test_a_report_is_continued_from(parent: upcall.Session) -> None:
    await parent.spawn("echo", "one")
    report = await next_item(parent)
    assert isinstance(report, upcall.Report)
    await report.handle()

    again = await report.child.continue_("two")

    assert (await again.result()).answer == "did two"
    with pytest.raises(upcall.NotFoundError):
        await parent.continue_("somebody-elses", "three")


async def test_a_resting_parent_is_woken_by_a_report_and_reports_once(parent: upcall.Session) -> None:
    child = await parent.spawn("lead", "all of it")

    result = await child.result()

    assert result.answer.startswith("woken by 1: ")
    assert "did a part" in result.answer
    assert len(result.record.runs) == 2
    items = await parent.query("inbox.list", {"session_id": child.session_id})
    assert items["items"] == []


@pytest.mark.parametrize(
    ("agent", "says"), [("exits", "exited with 2"), ("trips", "from within the handler")]
)
async def test_a_handler_that_ends_oddly_fails_its_run_and_no_other(
    parent: upcall.Session, agent: str, says: str
) -> None:
    beside = await parent.spawn("asks", "Keep v1?")
    odd = await (await parent.spawn(agent, "end oddly")).result()
    assert (odd.outcome, odd.ok) == (Outcome.FAILED, False)
    assert says in odd.text
    question = await beside.wait()
    assert isinstance(question, upcall.Question)
    await question.answer("yes", option="keep")
    result = await beside.wait()
    assert isinstance(result, upcall.Result)
    assert result.answer == "keep in attempt 1: yes"


async def test_bad_input_is_one_kind_of_error_wherever_it_is_found(
    live: upcall.Upcall, parent: upcall.Session
) -> None:
    with pytest.raises(upcall.InvalidError) as refused:
        await live.open_session("bad id", agent="planner")
    assert refused.value.details["fields"][0]["field"] == "caller"
    with pytest.raises(upcall.InvalidError, match="meta can't be written as JSON"):
        await parent.spawn("echo", "a part", meta={"a": {1}})
