"""The broker's composition: `faststream run upcall_question_broker.app:app`."""

from faststream import FastStream

from upcall_contracts import streams
from upcall_shell.process import Service

from .broker import Broker
from .decisions.asking import AskRules
from .handlers import command_handlers, deadline_handler, ends_handler
from .index import SERVICE, QuestionIndex
from .metrics import OLDEST, OPEN
from .overdue import Overdue
from .queries import QuestionQueries
from .settings import BrokerSettings
from .stores import PendingAnswers, Questions, Sessions


def build(settings: BrokerSettings) -> Service:
    """The broker, ready to be run."""
    service = Service(SERVICE, settings)
    questions, sessions = Questions(service.log), Sessions(service.log)
    index = QuestionIndex(service.redis, questions, sessions)
    overdue = Overdue(service.log.now)
    broker = Broker(
        questions,
        sessions,
        index,
        PendingAnswers(service.commands),
        service.timers,
        service.redis,
        AskRules(max_questions=settings.max_questions_per_run),
        overdue,
    )
    queries = QuestionQueries(questions, sessions, index, service.connection)
    service.on_commands("question_broker", command_handlers(broker, service.overloaded))
    service.on_deliveries(streams.TIMERS, "question_broker-timers", deadline_handler(broker))
    service.on_deliveries(streams.LOG, "question_broker-ends", ends_handler(broker))
    service.on_queries(queries.handlers())
    service.figures.add_oldest("questions", index.open_questions, OPEN, OLDEST)
    service.in_background(index.keeper.run)
    service.in_background(broker.mend)
    service.in_background(lambda: overdue.run(broker.deadline))
    return service


app: FastStream = build(BrokerSettings()).app()
