"""Changing a session: load, decide, commit, and do what follows. Nothing is decided here.

What follows from an entry (a dispatch, or its withdrawal, an item emptied or written anew, a lease) can be
read from the log, so a message that is delivered again does again what a crash may have left out.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from upcall_contracts import refusals, streams
from upcall_contracts.errors import Refusal
from upcall_contracts.records import Host, ItemKind, RunStatus
from upcall_contracts.states import SessionState
from upcall_shell import tracing
from upcall_shell.errors import Conflict, TooLarge
from upcall_shell.redis_gate import RedisGate
from upcall_shell.timers import Timers

from . import metrics
from .clock import now_ms
from .decisions import inbox, periods, steps, waking
from .decisions.deadlines import QUEUE, deadlines
from .decisions.dispatched import ended_in_queue, was_ended_in_queue
from .decisions.repeating import repeated
from .decisions.results import Asked, Decided, NotYet, Repeated
from .decisions.rules import Rules
from .decisions.soundness import unsound
from .dispatching import Dispatcher
from .earlier import Earlier
from .inbox_store import InboxItem, InboxStore
from .index import SessionIndex
from .leases import Leases
from .log_store import Loaded, SessionLog
from .overdue import Overdue
from .redelivery import is_redelivery

logger = structlog.get_logger()

Decision = Decided | Repeated | Refusal | NotYet | None
Decide = Callable[[SessionState | None], Awaitable[Decision]]

DISPATCH_CHECK_MS: Final = 10_000
"""A run that is queued for so long is dispatched once more, in case the process died before it was."""
_LOOK_S: Final = 0.05
_ORDER_MS: Final = 30_000
"""DESIGN.md section 4, "Order": how long a command waits for what belongs before it."""
_ORDER_LEAST_MS: Final = 3_000
"""How long at least from when it is handled: after an outage it may be older than what it waits for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command on one session."""

    decision: Decision
    loaded: Loaded | None
    """The session as it stands now."""

    @property
    def state(self) -> SessionState:
        """The session as it stands now, where there is one."""
        if self.loaded is None:
            raise LookupError("no such session")
        return self.loaded.state


class Sessions:
    """Every change of a session, one at a time."""

    def __init__(
        self,
        sessions: SessionLog,
        items: InboxStore,
        index: SessionIndex,
        leases: Leases,
        dispatcher: Dispatcher,
        timers: Timers,
        overdue: Overdue,
        gate: RedisGate,
        rules: Rules,
    ) -> None:
        self.log = sessions
        self.items = items
        self.index = index
        self.leases = leases
        self.rules = rules
        self._earlier = Earlier(sessions, index.commands, index.keeper)
        self._dispatcher = dispatcher
        self._timers = timers
        self._overdue = overdue
        self._gate = gate

    # Commands

    async def change(
        self, session_id: str, decide: Decide, asked: Asked | None = None, *, now: int | None = None
    ) -> Outcome:
        """Decide on a session until it is decided, commit it, and do what follows.

        `now` is the time in epoch ms at which what it owes is due, where that is not the present.
        """
        async with self._gate.lock(f"session:{session_id}") as turn:
            while True:
                try:
                    return await self._change(session_id, decide, asked, now)
                except Conflict:
                    await turn.insist()

    async def change_in_order(self, session_id: str, decide: Decide, asked: Asked) -> Outcome:
        """The same for what may have to wait for what belongs before it."""
        until = max(asked.now + _ORDER_MS, now_ms() + _ORDER_LEAST_MS)
        while True:
            outcome = await self.change(session_id, decide, asked)
            if not isinstance(outcome.decision, NotYet):
                return outcome
            if now_ms() >= until:
                return Outcome(outcome.decision.refusal, outcome.loaded)
            await asyncio.sleep(_LOOK_S)

    async def remembers(self, session_id: str, asked: Asked) -> bool:
        """Whether a command was carried out on a session.

        Then its caller may hear of it again, whoever may speak for the session now.
        """
        loaded = await self.log.load(session_id)
        if loaded is None:
            return False
        known = repeated(loaded.state, asked)
        if known is not None:
            return isinstance(known, Repeated)
        return await self._earlier.was_done(session_id, asked, loaded.seq)

    async def advance(self, session_id: str, now: int, *, again: bool = False) -> Loaded | None:
        """Do what a session owes at epoch ms `now`; `again`: also what may have been left out by a crash."""

        async def nothing(_: SessionState | None) -> Decision:
            return None

        outcome = await self.change(session_id, nothing, now=now)
        if again and outcome.loaded is not None:
            with tracing.carrying(outcome.loaded.trace):
                await self._follow_again(outcome.loaded.state)
        return outcome.loaded

    async def _change(self, session_id: str, decide: Decide, asked: Asked | None, now: int | None) -> Outcome:
        loaded = await self.log.load(session_id)
        # What nobody asked for (a holder is gone, its run is queued again) goes on in the trace before it.
        with tracing.carrying(loaded.trace if loaded else None):
            return await self._change_loaded(session_id, loaded, decide, asked, now)

    async def _change_loaded(
        self, session_id: str, loaded: Loaded | None, decide: Decide, asked: Asked | None, now: int | None
    ) -> Outcome:
        decision = await decide(loaded.state if loaded else None)
        if asked is not None and not isinstance(decision, Repeated):
            earlier = await self._earlier.find(session_id, asked, loaded.seq if loaded else 0)
            if earlier is not None:
                return Outcome(earlier, loaded)
        final: Decision = decision
        while isinstance(decision, Decided):
            try:
                loaded, final = await self._commit(loaded, decision)
            except TooLarge as error:
                final = refusals.too_much(error.size, "Say less at once, or use fewer sessions at a time.")
                break
            if not decision.more:
                break
            decision = final = await decide(loaded.state)
        if asked is not None and isinstance(final, Refusal):
            await self._earlier.refused(session_id, asked)
        if loaded is None:
            return Outcome(final, None)
        if is_redelivery() or isinstance(final, Repeated):
            await self._follow_again(loaded.state)  # who carried it out may have died right after that
        return Outcome(final, await self._advance(loaded, now if now is not None else now_ms()))

    # Committing

    async def _commit(self, loaded: Loaded | None, decided: Decided) -> tuple[Loaded, Decided]:
        before = loaded.state if loaded else None
        state = decided.state
        open_questions = await self._has_open_questions(state)
        rested = periods.rest(decided, state.updated_at, open_questions=open_questions)
        if wrong := unsound(before, rested.state):
            raise ValueError(f"{rested.subject} would take session {state.session_id} from {wrong}")
        await self._set_timers(before, rested.state)
        after = await self.log.append(rested, loaded.seq if loaded else 0)
        metrics.count(before, rested)
        await self.index.note(rested, after.seq)
        await self._follow(before, after.state)
        return after, rested

    async def _has_open_questions(self, state: SessionState) -> bool:
        if not state.has_children or not periods.seems_quiet(state):
            return False
        taken = set(state.taken)
        found = await self.open_questions(state.session_id)
        return any(item.item_id not in taken for item in found)

    async def open_questions(self, session_id: str) -> list[InboxItem]:
        """Questions in a session's inbox that somebody still waits for an answer to."""
        found = [item for item in await self.items.items(session_id) if item.kind == ItemKind.QUESTION]
        waiting = await asyncio.gather(*[self._is_waited_for(item) for item in found])
        return [item for item, waits in zip(found, waiting, strict=True) if waits]

    async def _is_waited_for(self, item: InboxItem) -> bool:
        """Between the end of a run and the end of its question, nobody waits for it."""
        child = await self.log.load(str(item.body["session_id"]))
        run = child.state.run if child is not None else None
        return (
            child is not None
            and run is not None
            and run.run_id == item.body["run_id"]
            and not child.state.cancelling
        )

    async def _set_timers(self, before: SessionState | None, after: SessionState) -> None:
        now = after.updated_at
        had = deadlines(before, now, self.rules) if before is not None else {}
        for kind, at in deadlines(after, now, self.rules).items():
            if had.get(kind) != at:
                await self.set_timer(
                    after.session_id, kind, min(at, now + DISPATCH_CHECK_MS) if kind == QUEUE else at
                )

    async def set_timer(self, session_id: str, kind: str, at: int) -> None:
        """Have the session looked at, at epoch ms `at`."""
        timer = streams.session_timer(session_id, kind)
        await self._timers.set(timer, at, {"session_id": session_id, "kind": kind})
        self._overdue.note(session_id, kind, at)

    # What follows from an entry

    async def _follow(self, before: SessionState | None, after: SessionState) -> None:
        await self.leases.follow(before, after)
        if before is None or before.run != after.run:
            await self.dispatch(after)
        if (ended := ended_in_queue(before, after)) is not None:
            await self._dispatcher.withdraw(ended)
        rewritten = {e.item_id for e in before.inbox if e.rewrite} if before is not None else set[str]()
        for entry in after.inbox:
            if entry.rewrite and entry.item_id not in rewritten:
                await self.items.write_anew(after.session_id, entry)
        taken = set(before.taken) if before is not None else set[str]()
        await self._empty(after, [item for item in after.taken if item not in taken])

    async def _follow_again(self, state: SessionState) -> None:
        await self.leases.follow_again(state)
        await self.dispatch(state)
        await self._withdraw_again(state)
        for entry in state.inbox:
            if entry.rewrite:
                await self.items.write_anew(state.session_id, entry)
        await self._empty(state, state.taken)

    async def dispatch(self, state: SessionState) -> None:
        """Dispatch the active run, if it waits for a runner."""
        if state.run is not None and state.run.status is RunStatus.QUEUED:
            await self._dispatcher.dispatch(state.run)

    async def _withdraw_again(self, state: SessionState) -> None:
        if state.host is Host.SELF or state.run is not None:
            return
        run = await self.log.last_run(state.session_id)
        if run is not None and was_ended_in_queue(state.host, run):
            await self._dispatcher.withdraw(run)

    async def _empty(self, state: SessionState, item_ids: list[str]) -> None:
        for item_id in item_ids:
            stored = await self.items.derived(state.session_id, item_id)
            if stored.body:
                await self.items.empty(state.session_id, item_id, stored.seq)

    async def emptied(self, state: SessionState) -> list[str]:
        """Taken items that INBOX shows no more."""
        handled = await asyncio.gather(*[self.items.is_handled(state.session_id, i) for i in state.taken])
        return [item for item, is_ in zip(state.taken, handled, strict=True) if is_]

    # What the state still owes

    async def _advance(self, loaded: Loaded, now: int) -> Loaded:
        while True:
            now = max(now, loaded.state.updated_at)
            step = steps.next_step(loaded.state, now, self.rules)
            if step is None and periods.seems_quiet(loaded.state):
                held = await self._has_open_questions(loaded.state)
                step = None if held else periods.look_again(loaded.state, now)
            if step is None:
                step = await self._wake(loaded.state, now)
            if step is None:
                return loaded
            loaded, _ = await self._commit(loaded, step)

    async def _wake(self, state: SessionState, now: int) -> Decided | None:
        if not waking.may_wake(state, now):
            return None
        items = await self._waking_items(state)
        if not items:
            return None
        parent = await self.log.load(state.parent_session_id) if state.parent_session_id else None
        emptied = await self.emptied(state)
        return waking.wake(state, items, emptied, parent.state if parent else None, now, self.rules)

    async def _waking_items(self, state: SessionState) -> list[waking.WakingItem]:
        """What the state knows to wake, once INBOX has its text; and questions, which only INBOX has."""
        known = [entry.item_id for entry in state.inbox if entry.wakes]
        for item_id in known:
            await self.items.derived(state.session_id, item_id)
        found = await self.items.items(state.session_id) if known or state.has_children else []
        questions = [i.item_id for i in found if i.kind == ItemKind.QUESTION and await self._is_waited_for(i)]
        wanted = {*known, *questions}
        return [waking.WakingItem(i.item_id, i.text) for i in found if i.item_id in wanted]

    async def forget_taken(self, session_id: str) -> None:
        """Forget taken items that INBOX shows no more, once they are many."""

        async def decide(state: SessionState | None) -> Decision:
            if state is None or len(state.taken) < inbox.TAKEN_KEPT:
                return None
            return inbox.forget(state, await self.emptied(state), now_ms())

        await self.change(session_id, decide)
