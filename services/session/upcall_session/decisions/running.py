"""Commands of who carries a run out: start, claim, append, settle; and background, of who waits for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from upcall_contracts import refusals
from upcall_contracts.commands import Background, RunAppend, RunSettle, RunStart
from upcall_contracts.errors import Refusal
from upcall_contracts.records import Host, Outcome, RunRecord, RunStatus
from upcall_contracts.states import SessionState, WorkLink

from . import access, entries, inbox, liveness
from .ending import end_run
from .repeating import done, repeated
from .results import Asked, Decided, NotYet, Repeated
from .rules import Rules
from .starting import Start, begin, parent_run


def start(
    state: SessionState,
    body: RunStart,
    asked: Asked,
    rules: Rules,
    *,
    run_id: str,
    items: Mapping[str, str],
    emptied: Sequence[str],
    parent: SessionState | None,
) -> Decided | Repeated | Refusal:
    """run.start: a self host starts a run of its own session.

    `items` are the texts of the causes that stand in the inbox unhandled, by item_id; `emptied` the taken
    items that INBOX shows no more. The run takes its causes out of the inbox.
    """
    known = repeated(state, asked)
    if known is not None:
        return known
    if state.closed_at is not None or state.closing:
        return refusals.session_closed(state.session_id)
    if state.host is not Host.SELF:
        return refusals.wrong_host(state.session_id)
    if state.status.value == "busy":
        return refusals.session_busy(state.run.run_id if state.run else state.letting_go)
    causes = inbox.untaken(state, [item for item in dict.fromkeys(body.causes) if item in items])
    texts = [items[item] for item in causes] if body.task is None else []
    if inbox.fitting(texts) < len(texts):
        return refusals.too_much(sum(map(len, texts)), "Name fewer causes at once, or give the run a task.")
    task = body.task if body.task is not None else "\n\n".join(texts) or None
    wanted = Start(
        run_id=run_id,
        trigger=body.trigger,
        task=task,
        causes=causes,
        parent_run_id=parent_run(None, parent, state.last_parent_run_id),
    )
    ready = inbox.take(state.model_copy(update={"live": True}), causes, emptied)
    return begin(done(ready, asked, run_id=run_id), wanted, asked.now, rules, asked)


def claim(state: SessionState, run: RunRecord, asked: Asked) -> Decided | Repeated | Refusal:
    """run.claim: a runner becomes the holder of a dispatched run. Claimed again by its holder, it stays so.

    `run` is the run that is named, as it stands in the log.
    """
    active = state.run
    if active is None or active.run_id != run.run_id:
        return refusals.run_not_claimable(run.run_id, run.status.value)
    if active.status is RunStatus.RUNNING and state.host is Host.RUNNER and state.holder == asked.caller:
        return Repeated({"run_id": active.run_id})
    if active.status is not RunStatus.QUEUED:
        return refusals.run_not_claimable(run.run_id, active.status.value)
    claimed = active.model_copy(
        update={
            "status": RunStatus.RUNNING,
            "holder": asked.caller,
            "started_at": active.started_at if active.started_at is not None else asked.now,
        }
    )
    after = state.model_copy(
        update={
            "run": claimed,
            "holder": asked.caller,
            "queue_deadline": None,
            "limit_from": state.limit_from if state.limit_from is not None else asked.from_now,
            "former_holders": [h for h in state.former_holders if h != asked.caller],
        }
    )
    after = done(after, asked, run_id=claimed.run_id)
    return entries.lifecycle(after, claimed, "started", asked.now, asked=asked)


def append(
    state: SessionState, run: RunRecord, body: RunAppend, asked: Asked
) -> Decided | Repeated | NotYet | Refusal:
    """run.append: add messages to the history, in the order that they name."""
    refused = repeated(state, asked) or _may_speak(state, run, body.attempt, asked)
    if refused is not None:
        return refused
    active = _running(state, run)
    if isinstance(active, Refusal):
        return active
    first = state.history_seq + 1
    if body.from_ is not None and body.from_ != first:
        refusal = refusals.order_not_met("from", body.from_, state.history_seq)
        return NotYet(refusal) if body.from_ > first else refusal
    steps = active.steps + (body.steps or 0)
    if active.step_budget is not None and body.steps and steps > active.step_budget:
        return refusals.step_budget_exhausted(active.run_id, active.step_budget)
    last = state.history_seq + len(body.messages)
    messages = [
        {**message.to_wire(), "index": index, "run_id": active.run_id}
        for index, message in enumerate(body.messages, first)
    ]
    grown = active.model_copy(
        update={
            "steps": steps,
            "history_from": active.history_from if active.history_from is not None else first,
            "history_to": last,
        }
    )
    after = state.model_copy(update={"run": grown, "history_seq": last})
    return entries.history(done(after, asked, history_seq=last), messages, asked.now, asked=asked)


def settle(
    state: SessionState, run: RunRecord, body: RunSettle, asked: Asked
) -> Decided | Repeated | NotYet | Refusal:
    """run.settle: the end of a run, and what it leaves running.

    The late settle of a host that was cancelled is refused, and lets go of the session all the same:
    `Decided` with `more`, after which the same command is refused.
    """
    refused = repeated(state, asked) or _may_speak(state, run, body.attempt, asked)
    if refused is not None:
        return refused
    if state.letting_go == run.run_id:
        freed = liveness.let_go(state, asked.now)
        return Decided(freed.subject, freed.type, freed.state, more=True)
    active = _running(state, run)
    if isinstance(active, Refusal):
        return active
    if body.history_seq is not None and body.history_seq > state.history_seq:
        return NotYet(refusals.order_not_met("history_seq", body.history_seq, state.history_seq))
    return end_run(
        done(state, asked, run_id=active.run_id),
        asked.now,
        Outcome(body.outcome.value),
        answer=body.answer,
        error=body.error,
        left=[_link(state, active, item, asked.now) for item in body.background],
        asked=asked,
    )


def background(state: SessionState, run: RunRecord, asked: Asked) -> Decided | Repeated | Refusal:
    """session.background: whoever waited for a foreground run goes on without it."""
    known = repeated(state, asked)
    if known is not None:
        return known
    active, period = state.run, state.period
    if active is None or active.run_id != run.run_id or period is None:
        return refusals.run_not_active(run.run_id, run.status.value)
    if active.background:
        return Repeated({"run_id": active.run_id})
    changed = active.model_copy(update={"background": True})
    after = state.model_copy(
        update={
            "run": changed,
            "period": period.model_copy(update={"foreground": False, "for_run": None}),
        }
    )
    after = done(after, asked, run_id=active.run_id)
    return entries.lifecycle(after, changed, "backgrounded", asked.now, asked=asked)


def _may_speak(state: SessionState, run: RunRecord, attempt: int | None, asked: Asked) -> Refusal | None:
    """unknown_run, then the attempt: a runner that lost the run is told so, and not that there is none."""
    current = state.run if state.run is not None and state.run.run_id == run.run_id else run
    carries_out = access.carries_out(asked.caller, state, current)
    if not carries_out and asked.caller not in state.former_holders:
        return refusals.unknown_run(run.run_id)
    if attempt is None and access.is_runner(asked.caller, state):
        return refusals.attempt_required()
    if not carries_out or attempt not in (None, current.attempt):
        return refusals.stale_attempt(run.run_id, current.attempt)
    return None


def _running(state: SessionState, run: RunRecord) -> RunRecord | Refusal:
    active = state.run
    if active is None or active.run_id != run.run_id:
        return refusals.run_not_active(run.run_id, RunStatus.SETTLED.value)
    if active.status is not RunStatus.RUNNING:
        return refusals.run_not_active(run.run_id, active.status.value)
    return active


def _link(state: SessionState, run: RunRecord, item: Background, now: int) -> WorkLink:
    values: dict[str, Any] = {
        "work_id": item.work_id,
        "run_id": run.run_id,
        "period_id": run.period_id or "",
        "kind": item.kind,
        "label": item.label,
        "wakes": item.wakes,
        "holder": state.holder if state.host is Host.RUNNER else None,
        "parent_run_id": run.parent_run_id,
        "task_id": run.task_id,
        "early": state.early_work.get(item.work_id),
    }
    return WorkLink(**values)
