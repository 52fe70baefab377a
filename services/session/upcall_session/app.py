"""The session service's composition: `faststream run upcall_session.app:app`."""

from faststream import AckPolicy, FastStream
from faststream.nats import NatsMessage

from upcall_contracts import streams, subjects
from upcall_shell.commands import CommandDesk
from upcall_shell.process import Service

from .derivation import Derivation
from .dispatch_sweep import DispatchSweep
from .dispatching import Dispatcher
from .figures import DispatchFigures
from .handlers.cascade import Cascade
from .handlers.continuing import Continuing
from .handlers.opening import Opening
from .handlers.reports import Reports
from .handlers.runs import Runs
from .handlers.spawning import Spawning
from .handlers.timers import Timers
from .handlers.work import Host
from .histories import Histories
from .inbox_store import InboxStore
from .index import SERVICE, SessionIndex
from .introspection import Introspection
from .leases import Leases
from .log_store import SessionLog
from .overdue import Overdue
from .queries import SessionQueries
from .reach import Reach
from .redelivery import counted
from .retention import Retention
from .sessions import Sessions
from .settings import SessionSettings
from .sweeping import Sweeper
from .waiting import Waiting


def build(settings: SessionSettings) -> Service:
    """The session service, ready to be run."""
    service = Service(SERVICE, settings)
    log = SessionLog(service.log)
    index = SessionIndex(service.redis, log)
    leases = Leases(service.redis, index.keeper, log)
    overdue = Overdue(service.log.now)
    sessions = Sessions(
        log,
        InboxStore(service.inbox),
        index,
        leases,
        Dispatcher(service.dispatch),
        service.timers,
        overdue,
        service.redis,
        settings.rules(),
    )
    reach = Reach(log, index)
    _serve_commands(service, sessions, reach)
    timers, reports = Timers(sessions, reach), Reports(sessions, reach)
    service.on_deliveries(streams.TIMERS, "session-timers", counted(timers.due))
    service.on_deliveries(streams.LOG, "session-questions", counted(timers.question))
    service.on_deliveries(streams.LOG, "session-reports", counted(reports.count))
    queries = SessionQueries(
        sessions, reach, Histories(log, index), Introspection(log, reach), Waiting(service, log, reach)
    )
    service.on_queries(queries.handlers())
    _hear_heartbeats(service, leases)
    DispatchFigures(service.dispatch).add_to(service.figures)
    service.in_background(index.keeper.run)
    service.in_background(lambda: overdue.run(timers.fire))
    service.in_background(Sweeper(service, sessions, leases).run)
    service.in_background(DispatchSweep(service.dispatch, log, settings.queue_ms).run)
    service.in_background(Derivation(service).run)
    service.in_background(Retention(service, sessions, reach, index, settings.rules()).run)
    return service


def _serve_commands(service: Service, sessions: Sessions, reach: Reach) -> None:
    cascade, runs, host = Cascade(sessions, reach), Runs(sessions, reach), Host(sessions, reach)
    continuing = Continuing(sessions, reach, cascade, service.overloaded)
    handlers = {
        ("session", "open"): Opening(sessions, service.overloaded).open,
        ("session", "spawn"): Spawning(sessions, reach, cascade, service.overloaded).spawn,
        ("session", "continue"): continuing.continue_,
        ("session", "background"): continuing.background,
        ("session", "cancel"): cascade.cancel,
        ("session", "close"): cascade.close,
        ("run", "start"): runs.start,
        ("run", "claim"): runs.claim,
        ("run", "append"): runs.append,
        ("run", "settle"): runs.settle,
        ("work", "finish"): host.finish,
        ("inbox", "handle"): host.handle,
        ("report", "release"): Reports(sessions, reach).release,
    }
    desk = CommandDesk(handlers, service.dead, service.reply)
    service.on_deliveries(streams.COMMANDS, "session", counted(desk.handle), desk.parked)


def _hear_heartbeats(service: Service, leases: Leases) -> None:
    """Every instance hears every heartbeat: no queue group."""

    async def whole(message: NatsMessage) -> NatsMessage:
        return message

    async def beat(message: NatsMessage) -> None:
        await leases.beat(message.raw_message)

    service.broker.subscriber(
        subjects.HEARTBEAT_ALL, decoder=whole, ack_policy=AckPolicy.MANUAL, no_reply=True
    )(beat)


app: FastStream = build(SessionSettings()).app()
