"""Commands, deadlines and ends of runs as they come off the wire."""

from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg

from upcall_contracts import log
from upcall_contracts.commands import QuestionAnswer, QuestionAsk, QuestionCancel
from upcall_contracts.records import QuestionRecord
from upcall_shell.commands import Command, CommandHandler, Outcome
from upcall_shell.delivery import Again
from upcall_shell.stamps import stored_at

from .broker import Broker, Result

_RUN_SUBJECT_TOKENS = 6  # log.session.<S>.<R>.lifecycle.<attempt>.<event>…


def command_handlers(
    broker: Broker, overloaded: Callable[[], Awaitable[bool]]
) -> dict[tuple[str, str], CommandHandler]:
    """The broker's commands."""

    async def ask(command: Command[QuestionAsk]) -> Outcome:
        return _reply(await broker.ask(command, overloaded=await overloaded()))

    async def answer(command: Command[QuestionAnswer]) -> Outcome:
        return _reply(await broker.answer(command))

    async def cancel(command: Command[QuestionCancel]) -> Outcome:
        return _reply(await broker.cancel(command))

    return {("question", "ask"): ask, ("question", "answer"): answer, ("question", "cancel"): cancel}


def _reply(result: Result) -> Outcome:
    return {"question": result.to_wire()} if isinstance(result, QuestionRecord) else result


def deadline_handler(broker: Broker) -> Callable[[Msg], Awaitable[Again | None]]:
    """A question's deadline has fired."""

    async def handle(message: Msg) -> Again | None:
        *_, run_id, request_id = message.subject.split(".")
        return await broker.deadline(request_id, run_id, stored_at(message))

    return handle


def ends_handler(broker: Broker) -> Callable[[Msg], Awaitable[Again | None]]:
    """A run has settled or is being cancelled, or a session has closed or lost its host."""

    async def handle(message: Msg) -> Again | None:
        place = log.tokens(message.subject)
        if len(place) >= _RUN_SUBJECT_TOKENS:
            await broker.end_owed_locked(place[2], stored_at(message))
        else:
            await broker.end_of_parent(place[1], stored_at(message))
        return None

    return handle
