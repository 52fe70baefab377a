"""How every run begins, whatever started it: its record, its period, and its task in the history."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from upcall_contracts import texts
from upcall_contracts.records import Host, RunRecord, RunStatus, Trigger
from upcall_contracts.states import SessionState

from . import entries, periods
from .results import Asked, Decided
from .rules import Rules


@dataclass(frozen=True, slots=True)
class Start:
    """What a run is to be."""

    run_id: str
    trigger: Trigger
    task: str | None = None
    """None: it has no task of its own, and adds none to the history."""
    description: str | None = None
    task_id: str | None = None
    causes: Sequence[str] = ()
    background: bool = True
    for_run: str | None = None
    """The caller's run that waits for it in the foreground."""
    parent_run_id: str | None = None
    """The run that its events are copied to."""
    step_budget: int | None = None
    timeout_ms: int | None = None


def parent_run(named: str | None, parent: SessionState | None, last: str | None) -> str | None:
    """The run that events are copied to: the one named, else the parent's active one, else the last."""
    if named is not None:
        return named
    if parent is not None and parent.run is not None:
        return parent.run.run_id
    return last


def begin(state: SessionState, start: Start, now: int, rules: Rules, asked: Asked | None = None) -> Decided:
    """Begin a run on an idle session. A self host's runs at once; a runner's waits to be claimed."""
    if state.run is not None:
        raise ValueError(f"run {state.run.run_id} is active")
    dispatched = state.host is Host.RUNNER
    run = _record(state, start, now, dispatched=dispatched)
    period = periods.opened(state, now)
    from_now = asked.from_now if asked is not None else now
    run = run.model_copy(update={"period_id": period.period_id})
    messages = _task_message(run)
    changed: dict[str, Any] = {
        "run": run,
        "runs": run.ordinal,
        "periods": period.ordinal,
        "period": period.model_copy(
            update={
                "runs": [*period.runs, run.run_id],
                "foreground": not start.background,
                "for_run": start.for_run,
            }
        ),
        "history_seq": state.history_seq + len(messages),
        "last_parent_run_id": start.parent_run_id,
        "queue_deadline": from_now + rules.queue_ms if dispatched else None,
        "limit_from": None if dispatched else from_now,
        "cancel_deadline": None,
        "cancel_reason": None,
        "early_work": {},
        "wake_blocked": False,
    }
    after = state.model_copy(update=changed)
    event = "queued" if dispatched else "started"
    return entries.lifecycle(after, run, event, now, history=messages, asked=asked)


def _record(state: SessionState, start: Start, now: int, *, dispatched: bool) -> RunRecord:
    task = start.task
    description = start.description
    if description is None and task is not None:
        description = texts.default_description(task)
    first = state.history_seq + 1 if task is not None else None
    return RunRecord(
        run_id=start.run_id,
        session_id=state.session_id,
        ordinal=state.runs + 1,
        trigger=start.trigger,
        causes=list(start.causes),
        parent_run_id=start.parent_run_id,
        parent_session_id=state.parent_session_id,
        root_session_id=state.root_session_id,
        task_id=start.task_id,
        description=description,
        task=task,
        agent=state.agent,
        model=state.model,
        variant=state.variant,
        background=start.background,
        notify=state.notify,
        status=RunStatus.QUEUED if dispatched else RunStatus.RUNNING,
        holder=None if dispatched else state.holder,
        step_budget=start.step_budget,
        timeout_ms=start.timeout_ms,
        history_from=first,
        history_to=first,
        queued_at=now,
        started_at=None if dispatched else now,
    )


def _task_message(run: RunRecord) -> list[dict[str, Any]]:
    """A run's task is the first message of its part of the history."""
    if run.task is None:
        return []
    return [{"index": run.history_from, "run_id": run.run_id, "role": "user", "content": run.task}]
