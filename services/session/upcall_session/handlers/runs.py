"""Commands on runs: start, claim, append and settle."""

from collections.abc import Callable

from upcall_contracts import refusals
from upcall_contracts.commands import RunAppend, RunClaim, RunSettle, RunStart
from upcall_contracts.errors import Refusal
from upcall_contracts.records import QuestionRecord, RunRecord
from upcall_contracts.states import SessionState
from upcall_session.decisions import inbox, running
from upcall_session.decisions.results import Asked, Decided, Repeated
from upcall_session.reach import Reach
from upcall_session.sessions import Decision, Outcome, Sessions
from upcall_shell.commands import Command
from upcall_shell.queries import as_many_as_fit

from .common import Reply, asked, run_id_of


class Runs:
    """Runs, as their hosts carry them out."""

    def __init__(self, sessions: Sessions, reach: Reach) -> None:
        self._sessions = sessions
        self._reach = reach

    async def start(self, command: Command[RunStart]) -> Reply:
        """run.start: a self host starts a run of its session."""
        body, who, run_id = command.body, asked(command), command.derive_id("r_")

        async def decide(state: SessionState | None) -> Decision:
            if state is None:
                return refusals.unknown_session(command.caller)
            return running.start(
                state,
                body,
                who,
                self._sessions.rules,
                run_id=run_id,
                items=await self._items(state, body.causes),
                emptied=await self._sessions.emptied(state),
                parent=await self._reach.session(state.parent_session_id),
            )

        outcome = await self._sessions.change(command.caller, decide, who)
        if isinstance(outcome.decision, Refusal):
            return outcome.decision
        return {"run": (await self._run(outcome, run_id_of(outcome) or run_id)).to_wire()}

    async def claim(self, command: Command[RunClaim]) -> Reply:
        """run.claim: a runner becomes the holder of a dispatched run.

        The last of its questions that fit are in the reply; those before them are named.
        """
        run_id, who = command.body.run_id, asked(command)

        def decide(state: SessionState, run: RunRecord) -> Decision:
            return running.claim(state, run, who)

        outcome = await self._change(run_id, decide, who)
        if isinstance(outcome.decision, Refusal):
            return outcome.decision
        run = await self._run(outcome, run_id)
        questions = await self._questions(run.run_id)
        shown = as_many_as_fit([question.to_wire() for question in reversed(questions)], at_least=0)
        left = len(questions) - len(shown)
        return {
            "run": run.to_wire(),
            "session": outcome.state.record().to_wire(),
            "questions": shown[::-1],
            "questions_left": [question.request_id for question in questions[:left]],
        }

    async def append(self, command: Command[RunAppend]) -> Reply:
        """run.append: add messages to the history."""
        who = asked(command)

        def decide(state: SessionState, run: RunRecord) -> Decision:
            return running.append(state, run, command.body, who)

        outcome = await self._change(command.body.run_id, decide, who)
        match outcome.decision:
            case Refusal() as refusal:
                return refusal
            case Repeated(result):
                return {"history_seq": result["history_seq"]}
            case Decided() as decided:
                return {"history_seq": decided.state.history_seq}
            case _:
                raise TypeError(f"an append came to {outcome.decision!r}")

    async def settle(self, command: Command[RunSettle]) -> Reply:
        """run.settle: the end of a run."""
        who = asked(command)

        def decide(state: SessionState, run: RunRecord) -> Decision:
            return running.settle(state, run, command.body, who)

        outcome = await self._change(command.body.run_id, decide, who)
        if isinstance(outcome.decision, Refusal):
            return outcome.decision
        return {"run": (await self._run(outcome, command.body.run_id)).to_wire()}

    async def _change(
        self, run_id: str, decide: Callable[[SessionState, RunRecord], Decision], who: Asked
    ) -> Outcome:
        """Decide on a run's session; what belongs before the command is waited for."""

        async def on_session(state: SessionState | None) -> Decision:
            run = await self._sessions.log.run(state, run_id) if state is not None else None
            return (
                decide(state, run) if state is not None and run is not None else refusals.unknown_run(run_id)
            )

        session_id = await self._sessions.index.session_of_run(run_id)
        if session_id is None:
            return Outcome(refusals.unknown_run(run_id), None)
        return await self._sessions.change_in_order(session_id, on_session, who)

    async def _run(self, outcome: Outcome, run_id: str) -> RunRecord:
        """The run of a reply: as the command left it, or as it stands now where the command came before."""
        if isinstance(outcome.decision, Decided) and isinstance(outcome.decision.data, RunRecord):
            return outcome.decision.data
        run = await self._sessions.log.run(outcome.state, run_id)
        if run is None:
            raise LookupError(f"run {run_id} is not in the log")
        return run

    async def _items(self, state: SessionState, item_ids: list[str]) -> dict[str, str]:
        """The texts of those of the items that stand in the inbox unhandled."""
        known = {entry.item_id for entry in state.inbox}
        found: dict[str, str] = {}
        for item_id in inbox.untaken(state, item_ids):
            if item_id in known:
                await self._sessions.items.derived(state.session_id, item_id)
            item = await self._sessions.items.item(state.session_id, item_id)
            if item is not None and not item.is_over:
                found[item_id] = item.text
        return found

    async def _questions(self, run_id: str) -> list[QuestionRecord]:
        questions = await self._sessions.log.questions(run_id)
        ids = [brief.request_id for brief in questions.questions] if questions is not None else []
        found = [await self._sessions.log.question(run_id, each) for each in ids]
        return [question for question in found if question is not None]
