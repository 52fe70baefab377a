"""The dashboard and the alerts ask for what the services show, and the docs say what to do about it."""

import json
import re
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram

from upcall_question_broker import metrics as question_broker
from upcall_reporter import metrics as reporter
from upcall_session import metrics as session
from upcall_shell import metrics as shell

ROOT = Path(__file__).parent.parent.parent
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/upcall.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/alerts/upcall.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DOCS = (ROOT / "docs/operating.md").read_text()

QUERIES = [
    *((panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]),
    *((rule["alert"], rule["expr"]) for rule in RULES),
]
SCRAPING = {"job", "instance"}
"""The labels that Prometheus adds itself."""
FOREIGN: dict[str, set[str]] = {"up": set(), "process_resident_memory_bytes": set()}
"""What is shown by Prometheus, and by its client."""


def _ours() -> dict[str, tuple[str, set[str]]]:
    """Each metric of the services as it is shown: its family, and its labels."""
    found: dict[str, tuple[str, set[str]]] = {}
    for module in (shell, session, question_broker, reporter):
        for metric in vars(module).values():
            if not isinstance(metric, Counter | Gauge | Histogram):
                continue
            labels = set(metric._labelnames)
            name = next(iter(metric.describe())).name
            if isinstance(metric, Counter):
                found[f"{name}_total"] = (f"{name}_total", labels)
            elif isinstance(metric, Gauge):
                found[name] = (name, labels)
            else:
                found |= {f"{name}_{part}": (name, labels) for part in ("sum", "count")}
                found[f"{name}_bucket"] = (name, labels | {"le"})
    return found


OURS = _ours()
FAMILIES = {family: labels - {"le"} for family, labels in OURS.values()}


def _documented(head: str) -> dict[str, set[str]]:
    """The metrics of the table under a heading in bold, with their labels."""
    table = DOCS.split(head, 1)[1].split("\n\n", 2)[1]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines()[2:]]
    return {
        name: {label for label in labels.split(", ") if label}
        for names, labels in rows
        for name in re.findall(r"`(upcall_\w+)`", names)
    }


OF_THE_INSTANCE = _documented("**Counters and histograms**")
OF_THE_DEPLOYMENT = _documented("**Gauges of the whole deployment**")


class Query:
    """What a query asks for."""

    def __init__(self, text: str) -> None:
        self.selected: list[promql.VectorSelector] = []
        self.grouped: list[tuple[promql.AggregateExpr, list[promql.VectorSelector]]] = []
        self._walk(promql.parse(text.replace("$__rate_interval", "5m")))

    def _walk(self, tree: promql.Expr) -> None:
        def visit(node: promql.Expr) -> None:
            if isinstance(node, promql.VectorSelector):
                self.selected.append(node)
            elif isinstance(node, promql.AggregateExpr):
                self.grouped.append((node, _selectors(node)))

        promql.walk(tree, visit)


def _selectors(tree: promql.Expr) -> list[promql.VectorSelector]:
    found: list[promql.VectorSelector] = []

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(tree, visit)
    return found


def _labels(name: str | None) -> set[str]:
    """The labels of a metric. KeyError if there is no such metric."""
    return (FOREIGN[name or ""] if name in FOREIGN else OURS[name or ""][1]) | SCRAPING


@pytest.mark.parametrize(
    ("where", "text"), QUERIES, ids=[f"{where}-{n}" for n, (where, _) in enumerate(QUERIES)]
)
def test_what_is_asked_for_exists(where: str, text: str) -> None:
    """Every metric, and every label that it is selected or grouped by."""
    query = Query(text)
    assert query.selected, where
    for selector in query.selected:
        assert selector.name in {*OURS, *FOREIGN}, f"{where}: no service shows {selector.name}"
        named = {matcher.name for matcher in selector.matchers.matchers}
        assert named <= _labels(selector.name), (
            f"{where}: {selector.name} has no {named - _labels(selector.name)}"
        )
    for aggregate, selectors in query.grouped:
        by = set(aggregate.modifier.labels) if aggregate.modifier is not None else set[str]()
        for selector in selectors:
            missing = by - _labels(selector.name)
            assert not missing, f"{where}: {selector.name} has no {missing}"


@pytest.mark.parametrize(
    ("where", "text"), QUERIES, ids=[f"{where}-{n}" for n, (where, _) in enumerate(QUERIES)]
)
def test_what_every_instance_shows_is_not_added_up(where: str, text: str) -> None:
    """Two instances show the same open question: the sum would count it twice."""
    query = Query(text)
    asked = [selector.name for selector in query.selected if selector.name in OF_THE_DEPLOYMENT]
    grouped = [
        (str(aggregate.op), selector.name)
        for aggregate, found in query.grouped
        for selector in found
        if selector.name in OF_THE_DEPLOYMENT
    ]
    assert sorted(grouped) == sorted(("max", name) for name in asked), where


def test_the_docs_list_every_metric_with_its_labels() -> None:
    assert OF_THE_INSTANCE | OF_THE_DEPLOYMENT == FAMILIES
    assert not set(OF_THE_INSTANCE) & set(OF_THE_DEPLOYMENT)


def test_every_alert_has_its_section_and_says_where() -> None:
    sections = re.findall(r"^### (\w+)$", DOCS.split("## When an alert fires", 1)[1], flags=re.MULTILINE)
    assert sections == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/operating.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"page", "ticket"}


def test_the_panels_are_laid_out_side_by_side() -> None:
    """Ids are unique, and no panel lies on another."""
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    taken = [
        (x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(taken) == len(set(taken))
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
