"""Spans from the ask to the resumed child, and from the spawn to the report; the services run in here."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import upcall
from tests.in_process import serving, settings_for
from tests.question_broker.place import Place
from tests.question_broker.world import WITHIN, eventually
from upcall_question_broker import app as question_broker
from upcall_question_broker.settings import BrokerSettings
from upcall_reporter import app as reporter
from upcall_session import app as session
from upcall_session.settings import SessionSettings
from upcall_shell import tracing
from upcall_shell.process import Service
from upcall_shell.settings import ShellSettings
from upcall_shell.spans import Spans

PROVIDER = TracerProvider()
trace.set_tracer_provider(PROVIDER)  # the application's part; once a process


class Exported:
    """What has been exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        PROVIDER.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    async def one(self, name: str) -> ReadableSpan:
        """The one span of that name, once it has ended."""

        async def look() -> list[ReadableSpan]:
            return self.named(name)

        (span,) = await eventually(look)
        return span

    def children(self, parent: trace.Span) -> list[ReadableSpan]:
        """All spans that name this one as their parent."""
        id_ = parent.get_span_context().span_id
        return [s for s in self._exporter.get_finished_spans() if s.parent and s.parent.span_id == id_]

    def clear(self) -> None:
        self._exporter.clear()


SPANS = Exported()


@pytest.fixture
def spans() -> Iterator[Exported]:
    tracing.use(Spans(PROVIDER))
    SPANS.clear()
    yield SPANS
    tracing.use(None)


@pytest.fixture(scope="module")
def running_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place.running(tmp_path_factory.mktemp("tracing"), brokers=0) as place:
        yield place


class Services:
    """The session service and the reporter, and brokers as a test wants them."""

    def __init__(self, place: Place) -> None:
        self._settings = settings_for(place)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Services":
        settings = SessionSettings(**self._settings, lease_ms=2000)
        await self._stack.enter_async_context(serving(session.build(settings)))
        await self._stack.enter_async_context(serving(reporter.build(ShellSettings(**self._settings))))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def broker(self) -> AbstractAsyncContextManager[Service]:
        """A broker from its readiness to its graceful stop; the next one remembers nothing of it."""
        return serving(question_broker.build(BrokerSettings(**self._settings)))


@pytest.fixture
async def services(running_servers: Place) -> AsyncIterator[Services]:
    async with Services(running_servers) as services:
        yield services


@pytest.fixture
async def up(running_servers: Place) -> AsyncIterator[upcall.Upcall]:
    async with upcall.connect(running_servers.nats.url) as up:
        yield up


def links(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == id_of(parent)


async def _question(inbox: upcall.Inbox) -> upcall.Question:
    item = await inbox.next(within=WITHIN)
    assert isinstance(item, upcall.Question)
    return item


async def _asked_and_answered(
    services: Services, up: upcall.Upcall, spans: Exported, *, restart: bool
) -> None:
    """A child asks, its parent reads that in its inbox and answers, the child goes on."""
    planner = await up.open_session(agent="planner")
    child = await planner.spawn("explorer", "Map the API.", host="self")
    run = await child.carry_out()
    async with AsyncExitStack() as first:
        await first.enter_async_context(services.broker())
        asking = asyncio.create_task(run.ask_parent("Keep v1?", "Clients may depend on it."))
        question = await _question(planner.inbox())
        await spans.one("send question.ask")  # its reply came: nothing of the ask is under way any more
        if restart:
            await first.aclose()
        async with services.broker() if restart else AsyncExitStack():
            await question.answer("keep")
            assert (await asking).text == "keep"
    await run.settle("completed", "mapped")


@pytest.mark.parametrize("restart", [False, True], ids=["one broker", "broker restarted in between"])
async def test_a_question_is_linked_from_the_ask_to_the_resumed_child(
    services: Services, up: upcall.Upcall, spans: Exported, restart: bool
) -> None:
    """Each step is a span that has ended, and names the one before it as parent or link."""
    await _asked_and_answered(services, up, spans, restart=restart)

    ask, asked = await spans.one("send question.ask"), await spans.one("process question.ask")
    read = await spans.one("receive inbox.question")
    answer, answered = await spans.one("send question.answer"), await spans.one("process question.answer")
    resumed = await spans.one("receive question.end")

    assert is_child(asked, ask)
    assert links(read) == {id_of(asked)}
    assert is_child(answer, read)
    assert links(answer) == {id_of(asked)}
    assert is_child(answered, answer)
    assert links(answered) == {id_of(asked)}
    assert links(resumed) == {id_of(asked), id_of(answered)}
    assert resumed.attributes is not None
    assert resumed.attributes["upcall.status"] == "answered"


async def test_no_span_is_open_while_the_child_waits(
    services: Services, up: upcall.Upcall, spans: Exported
) -> None:
    """The ask's spans end with its reply, before there is an answer."""
    await _asked_and_answered(services, up, spans, restart=False)

    ask, answer = await spans.one("send question.ask"), await spans.one("send question.answer")
    asked, resumed = await spans.one("process question.ask"), await spans.one("receive question.end")
    assert ask.end_time is not None
    assert answer.start_time is not None
    assert asked.end_time is not None
    assert resumed.start_time is not None
    assert max(ask.end_time, asked.end_time) <= answer.start_time <= resumed.start_time


async def test_a_timeout_is_linked_to_its_ask_after_a_restart(
    services: Services, up: upcall.Upcall, spans: Exported
) -> None:
    """The deadline that another broker carries out knows where it was set."""
    planner = await up.open_session(agent="planner")
    run = await (await planner.spawn("explorer", "Map the API.", host="self")).carry_out()
    async with services.broker():
        asking = asyncio.create_task(run.ask_parent("Keep v1?", "Unsure.", fallback="keep", timeout_ms=1500))
        asked = await spans.one("process question.ask")
        await spans.one("send question.ask")
    async with services.broker():
        assert (await asking).timed_out

    fired = await spans.one("process question_broker-timers")
    resumed = await spans.one("receive question.end")
    assert fired.parent is None
    assert links(fired) == {id_of(asked)}
    assert links(resumed) == {id_of(asked), id_of(fired)}
    await run.settle("completed")


async def test_a_run_is_linked_from_its_spawn_to_its_report(
    services: Services, up: upcall.Upcall, spans: Exported
) -> None:
    """The run's trace begins with its dispatch, linked to the spawn, and ends with the report."""
    runner = upcall.Runner(up)

    @runner.agent("explorer")
    async def explore(run: upcall.Run) -> str:
        with trace.get_tracer("test").start_as_current_span("the handler's own"):
            return "mapped"

    planner = await up.open_session(agent="planner")
    serving = asyncio.create_task(runner.run(handle_signals=False))
    try:
        await planner.spawn("explorer", "Map the API.")
        report = await planner.inbox().next(within=WITHIN)
        assert isinstance(report, upcall.Report)
        await report.handle()
    finally:
        runner.stop()
        await serving

    spawn, spawned = await spans.one("send session.spawn"), await spans.one("process session.spawn")
    received, own = await spans.one("receive dispatch"), await spans.one("the handler's own")
    settle, settled = await spans.one("send run.settle"), await spans.one("process run.settle")
    read, handle = await spans.one("receive inbox.report"), await spans.one("send inbox.handle")

    assert is_child(spawned, spawn)
    assert received.parent is None
    assert links(received) == {id_of(spawned)}
    assert all(is_child(span, received) for span in (own, settle))
    assert is_child(settled, settle)
    (reported,) = [s for s in spans.named("process reporter-periods") if id_of(s) in links(read)]
    assert is_child(reported, settled)
    assert is_child(handle, read)


async def test_what_is_asked_in_a_span_is_answered_in_its_trace(
    services: Services, up: upcall.Upcall, spans: Exported
) -> None:
    """A wait in the foreground too, of which only the end is a span; outside of one nothing is."""
    planner = await up.open_session(agent="planner")
    child = await planner.spawn("explorer", "Map the API.", host="self", background=False)
    run = await child.carry_out()
    await planner.tree()
    with trace.get_tracer("test").start_as_current_span("the parent's own") as own:
        waiting = asyncio.create_task(child.wait())
    await run.settle("completed", "mapped")
    await waiting

    async def found() -> bool:
        return {"answer run.wait", "answer report.get"} <= {span.name for span in spans.children(own)}

    await eventually(found)
    assert spans.named("answer session.list") == []


async def test_a_run_that_is_taken_over_is_linked_to_what_came_before(
    services: Services, up: upcall.Upcall, spans: Exported
) -> None:
    """Nobody asked for the take-over: what the log has of the run's context is all there is."""
    planner = await up.open_session(agent="planner")
    child = await planner.spawn("explorer", "Map the API.")
    await up.wire.command("runner-1", "run.claim", {"run_id": child.run_id})  # and beats never
    claimed = await spans.one("process run.claim")
    spans.clear()
    runner = upcall.Runner(up)

    @runner.agent("explorer")
    async def explore(run: upcall.Run) -> str:
        return f"attempt {run.attempt}"

    serving = asyncio.create_task(runner.run(handle_signals=False))
    try:
        assert (await child.result()).answer == "attempt 2"
    finally:
        runner.stop()
        await serving
    received = spans.named("receive dispatch")
    assert id_of(claimed) in {id_ for span in received for id_ in links(span)}


async def test_a_context_is_carried_through_services_that_make_no_spans(
    services: Services, up: upcall.Upcall, spans: Exported
) -> None:
    """Harnesses can trace each other whatever the operator has switched on."""
    tracing.use(None)
    await _asked_and_answered(services, up, spans, restart=True)

    ask, answer = await spans.one("send question.ask"), await spans.one("send question.answer")
    read, resumed = await spans.one("receive inbox.question"), await spans.one("receive question.end")
    assert spans.named("process question.ask") == []
    assert links(read) == {id_of(ask)}
    assert links(answer) == {id_of(ask)}
    assert links(resumed) == {id_of(ask), id_of(answer)}
