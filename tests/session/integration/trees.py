"""What a tree that has come to rest must look like, judged by what its hosts did and nothing else.

Hosts write down what they spawned, left running and settled; the log says what was reported. Nothing here
knows how the services decide.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.blackbox.wire import Json

REPORTED = ("report_delivered", "report_suppressed")


@dataclass
class Child:
    """A run that a host was given a receipt for."""

    session_id: str
    run_id: str
    background: bool


@dataclass
class Ledger:
    """What the hosts of one tree did, by run and by session."""

    root: str = ""
    silent: dict[str, bool] = field(default_factory=dict[str, bool])
    """By session: whether its reports are kept from its parent."""
    parents: dict[str, str] = field(default_factory=dict[str, str])
    left: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """By run: the shells it left running."""
    children: dict[str, list[Child]] = field(default_factory=dict[str, list[Child]])
    """By run: the runs it spawned or continued."""
    outcomes: dict[str, tuple[str, str | None]] = field(default_factory=dict[str, tuple[str, str | None]])
    """By run: how its host settled it, and with which answer."""

    def spawned(self, by: str, run_id: str, child: Child, notify: bool | None) -> None:
        """A session spawned a child; one that says nothing of notify inherits it."""
        self.parents[child.session_id] = by
        self.silent[child.session_id] = self.silent.get(by, False) if notify is None else not notify
        self.continued(run_id, child)

    def continued(self, run_id: str, child: Child) -> None:
        """A run was given one of a child."""
        self.children.setdefault(run_id, []).append(child)

    def settled(self, run_id: str, outcome: str, answer: str | None, jobs: list[str]) -> None:
        """A host settled a run, and left jobs running."""
        self.outcomes[run_id] = outcome, answer
        self.left[run_id] = jobs

    def waits_for(self, run_ids: list[str]) -> set[str]:
        """What runs left running: shells by id, and children by session."""
        jobs = {job for run_id in run_ids for job in self.left[run_id]}
        return jobs | {child.session_id for run_id in run_ids for child in self.children.get(run_id, [])}

    def foreground(self) -> dict[str, str]:
        """The runs that somebody waited for, with the run that did."""
        found = [(child, run_id) for run_id, children in self.children.items() for child in children]
        return {child.run_id: run_id for child, run_id in found if not child.background}


class Judge:
    """Holds the log of a tree, in the order of its decisions, against what its hosts did."""

    def __init__(self, ledger: Ledger, events: list[Json]) -> None:
        self.ledger = ledger
        self.reports: list[tuple[int, Json]] = [
            (at, e["data"]) for at, e in enumerate(events) if e["type"] in REPORTED
        ]
        self.ended = {e["data"]["work_id"]: at for at, e in enumerate(events) if e["type"] == "work_finished"}
        self.ends = Counter(e["data"]["work_id"] for e in events if e["type"] == "work_finished")
        self.settled = {e["run_id"]: e["data"] for e in events if e["type"] == "run_settled"}
        self.settles = Counter(e["run_id"] for e in events if e["type"] == "run_settled")
        self.began = {e["run_id"] for e in events if e["type"] in ("run_started", "run_queued")}
        self.reported_at = {run: at for at, report in self.reports for run in report["runs"]}
        self.foreground = ledger.foreground()

    def judge(self) -> None:
        """All of it."""
        self.each_run_is_in_one_report()
        for at, report in self.reports:
            self.says_what_was_settled(report)
            self.goes_where_it_belongs(report)
            self.waited_for_its_work(at, report)
        causes = [cause for run in self.settled.values() for cause in run["causes"]]
        assert len(causes) == len(set(causes)), "an item is the cause of one run at most"

    def each_run_is_in_one_report(self) -> None:
        """None lost, none twice: what was begun was settled once, and is in the report of its period."""
        assert self.began == set(self.settled) == set(self.ledger.outcomes)
        assert set(self.settles.values()) == {1}
        assert sorted(run for _, report in self.reports for run in report["runs"]) == sorted(self.settled)
        periods = Counter(report["period_id"] for _, report in self.reports)
        assert periods == Counter({run["period_id"] for run in self.settled.values()})
        for _, report in self.reports:
            assert {self.settled[run]["period_id"] for run in report["runs"]} == {report["period_id"]}
        assert self.ends == Counter(job for jobs in self.ledger.left.values() for job in jobs)

    def says_what_was_settled(self, report: Json) -> None:
        """The outcome and the answer are those of its last run."""
        outcome, answer = self.ledger.outcomes[report["runs"][-1]]
        assert (report["outcome"], report["answer"]) == (outcome, answer)
        assert report["result"] == ("completed" if outcome == "completed" else "error")

    def goes_where_it_belongs(self, report: Json) -> None:
        """To the parent, unless there is none or the child is silent; to the run that waits, if one does."""
        session_id = report["session_id"]
        if session_id == self.ledger.root:
            expected: tuple[str, str | None] = ("suppressed", "no_parent")
        elif self.ledger.silent[session_id]:
            expected = ("suppressed", "silent")
        else:
            expected = ("delivered", None)
        assert (report["status"], report["reason"]) == expected
        assert report["for_run"] == self.foreground.get(report["runs"][-1])

    def waited_for_its_work(self, at: int, report: Json) -> None:
        """All that its runs left running was over before it. Only a run in the foreground ends it earlier:
        its own last one, or the one that follows; then it names what it did not wait for."""
        waits = self.ledger.waits_for(report["runs"])
        over, pending = {item["id"] for item in report["work"]}, {item["id"] for item in report["pending"]}
        assert over | pending == waits
        for job in over & set(self.ended):
            assert self.ended[job] < at, f"{job} ended after the report on it"
        for run_id in report["runs"]:
            for child in self.ledger.children.get(run_id, []):
                if child.session_id not in pending:
                    assert self.reported_at[child.run_id] < at, f"{child} reported after its parent"
        if pending:
            last = self.settled[report["runs"][-1]]
            ordinals = [last["ordinal"], last["ordinal"] + 1]
            ending = [self.settled[run] for run in self.foreground if run in self.settled]
            assert any(
                run["session_id"] == report["session_id"] and run["ordinal"] in ordinals for run in ending
            ), f"reported before {pending}"
