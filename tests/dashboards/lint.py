"""What each board and each alert must hold. A rule is a function that yields what is wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from dashboards.panels import WIDTH
from dashboards.promql import RANGE, RATE_INTERVAL
from dashboards.rules import GROUPS
from tests.dashboards.board_queries import files, queries_of_board
from tests.dashboards.promql_reader import Expression, Selector
from tests.judges.programs import ROOT
from traced_tools.observe import names
from traced_tools.observe.names.registry_types import Metric
from traced_tools.otel.prometheus_names import label_name, prometheus_name

Board = dict[str, Any]
Alert = dict[str, Any]
Findings = Iterator[str]

BOARDS: Final[dict[str, Board]] = {path.stem: json.loads(path.read_text()) for path in files("classic", "*.json")}
FIXED_WINDOWS: Final = {
    "tt-cost": "budgets are per day and month, whatever the time range",
    "tt-telemetry": "a service that has stopped is one of the last day",
}
"""Boards whose instant queries may have windows of their own, and why."""
_MOST_CHARACTERS, _SCHEMA_VERSION = 40, 42
_OF_OTHERS: Final = re.compile(r"otelcol_.+|ALERTS|up|target_info")
"""Metrics of Prometheus and of the collector."""
_ON_ALL_SERIES: Final = {"job", "instance", "__name__", "le"}
_LABELS_OF_OTHERS: Final = {
    *("alertname", "alertstate", "severity", "source"),
    *("service_version", "telemetry_sdk_name", "telemetry_sdk_language", "telemetry_sdk_version"),
    *("exporter", "receiver", "data_type", "policy", "sampled"),
}
_IDS: Final = re.compile(r".*(session|user|conversation|(trace|span|run|call|response)_id).*")
"""Labels that name one thing among very many."""
_DURATION: Final = re.compile(r"\d+[smhdw](:\d+[smhdw])?")
_COUNTING: Final = re.compile(r"(count|group|timestamp)\s*(by\s*\([^()]*\)\s*)?\(\s*$|\bunless\s*$")
_FIRST: Final = re.compile(r"\s*unless\b")
_BEFORE_THE_WINDOW: Final = re.compile(r"unless last_over_time\($")
"""What precedes a selector of the samples before a window, which say that a series is not new."""
_BOARD_URL: Final = re.compile(r"/d/([\w-]+)\?([^\"\\]*)")


def _series() -> Iterator[tuple[str, Metric]]:
    for metric in names.METRICS.values():
        name = prometheus_name(metric)
        yield name, metric  # of a histogram, this is the name if it is native
        if metric.instrument == "histogram":
            yield from ((f"{name}_{part}", metric) for part in ("bucket", "sum", "count"))


SERIES: Final = dict(_series())
"""The metrics by the names of their series."""
RECORDED: Final = {rule.name for group in GROUPS.values() for rule in group.rules}
LABELS: Final = {label_name(name) for metric in names.METRICS.values() for name in metric.attributes}


# What a board has.


def _panels(board: Board) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def _variables(board: Board, kind: str) -> list[dict[str, Any]]:
    return [each for each in board["templating"]["list"] if each["type"] == kind]


def _expressions(board: Board) -> Iterator[tuple[str, dict[str, Any], Expression]]:
    """Yield each PromQL query of a panel: where it is, its target, and its text."""
    for panel in _panels(board):
        for target in panel["targets"]:
            if target["datasource"]["type"] == "prometheus":
                yield f"panel {panel['id']} {target['refId']}", target, Expression(target["expr"])


def _labels_of(selector: Selector) -> set[str]:
    """Return the labels of the metrics of ours that a selector names."""
    metrics = [SERIES[name] for name in selector.names if name in SERIES]
    return {label_name(name) for metric in metrics for name in metric.attributes}


# Rules of boards.


def identity(board: Board) -> Findings:
    """The uid and the version of the schema are fixed, and nothing is in the file that Grafana numbers itself."""
    if not board["uid"].startswith("tt-") or len(board["uid"]) > _MOST_CHARACTERS:
        yield f"the uid {board['uid']} does not begin with tt-, or has more than {_MOST_CHARACTERS} characters"
    if board["schemaVersion"] != _SCHEMA_VERSION:
        yield f"the version of the schema is {board['schemaVersion']}"
    yield from (f"the file has {name}" for name in ("id", "version", "iteration") if name in board)


def panel_ids(board: Board) -> Findings:
    """Panels have ids of their own, because alerts link to them."""
    counts = Counter(panel["id"] for panel in board["panels"])
    yield from (f"{count} panels have the id {number}" for number, count in counts.items() if count > 1)


def texts(board: Board) -> Findings:
    """A panel has a title, a question, a unit, and a text for when it is empty."""
    for panel in _panels(board):
        defaults = panel["fieldConfig"]["defaults"]
        if not panel["title"]:
            yield f"panel {panel['id']} has no title"
        if "?" not in panel["description"]:
            yield f"panel {panel['id']} answers no question"
        if not defaults.get("unit") and panel["type"] != "logs":
            yield f"panel {panel['id']} has no unit"
        if not defaults.get("noValue"):
            yield f"panel {panel['id']} does not say what to do while it is empty"


def data_sources(board: Board) -> Findings:
    """Whatever asks a data source names a variable of the board for it."""
    has = {f"${{{each['name']}}}": each["query"] for each in _variables(board, "datasource")}
    asking = {
        **{f"panel {panel['id']}": panel for panel in _panels(board)},
        **{f"panel {panel['id']} {each['refId']}": each for panel in _panels(board) for each in panel["targets"]},
        **{f"variable {each['name']}": each for each in _variables(board, "query")},
        **{f"annotation {each['name']}": each for each in board["annotations"]["list"]},
    }
    for where, asks in asking.items():
        source = asks.get("datasource", {})
        if has.get(source.get("uid"), "no such variable") != source.get("type"):
            yield f"{where} has the data source {source}"


def selection(board: Board) -> Findings:
    """Each selector of our metrics has the variable of the service, and each other variable that it has a label for."""
    chosen: dict[str, list[str]] = {}
    for each in _variables(board, "query"):
        chosen.setdefault(re.sub(r".*, *(\w+)\)", r"\1", each["definition"]), []).append(f"${each['name']}")
    for where, _, expression in _expressions(board):
        for selector in expression.selectors:
            labels = _labels_of(selector)
            if not labels and not SERIES.keys() & {*selector.names} and not RECORDED & {*selector.names}:
                continue
            for label, variables in chosen.items():
                accepted = {("=~", each) for each in (*variables, "|".join(variables))}
                if label in {"job", *labels} and selector.labels.get(label) not in accepted:
                    yield f"{where}: {selector.names[0]} lacks {' or '.join(variables)}"


def windows(board: Board) -> Findings:
    """Rates over time follow the resolution of the board, and totals its time range."""
    for where, target, expression in _expressions(board):
        is_instant = target.get("instant", False)
        wanted = RANGE if is_instant else RATE_INTERVAL
        for selector in expression.selectors:
            window = selector.window or wanted
            if _BEFORE_THE_WINDOW.search(selector.before):
                continue
            is_free = is_instant and board["uid"] in FIXED_WINDOWS and _DURATION.fullmatch(window)
            if window != wanted and not is_free:
                yield f"{where}: {selector.names[0]} has the window {window} instead of {wanted}"


def counters(board: Board) -> Findings:
    """A counter is shown by its growth, because it begins at 0 with each process."""
    for where, _, expression in _expressions(board):
        for selector in expression.selectors:
            kinds = {SERIES[name].instrument for name in selector.names if name in SERIES}
            is_counted = _COUNTING.search(selector.before) or _FIRST.match(selector.after)
            if kinds & {"counter", "histogram"} and selector.window is None and not is_counted:
                yield f"{where} shows the counter {selector.names[0]} as it is"


def sums_of_spans(board: Board) -> Findings:
    """A sum over spans leaves out spans without the attribute, because Tempo's sum is wrong if it meets one."""
    for query in queries_of_board(board):
        summed = re.findall(r"sum_over_time\((span\.[\w.]+)\)", query.text)
        for attribute in summed if query.language == "traceql" else ():
            if f"{attribute} > 0" not in query.text:
                yield f"panel {query.panel}: {attribute} is added up without {attribute} > 0"


def quantiles(board: Board) -> Findings:
    """A quantile of buckets is one of sums by `le`."""
    for where, _, expression in _expressions(board):
        for selector in expression.selectors:
            _, function, within = selector.before.rpartition("histogram_quantile")
            is_bucket = bool(function) and selector.names[0].endswith("_bucket")
            if is_bucket and not re.search(r"\bby\s*\([^()]*\ble\b", within):
                yield f"{where}: the quantile of {selector.names[0]} is not by le"


def known_names(board: Board) -> Findings:
    """Every metric and every label is one that is emitted."""
    for where, _, expression in _expressions(board):
        yield from (f"{where}: {finding}" for finding in unknown_names(expression))


def unknown_names(expression: Expression) -> Findings:
    for selector in expression.selectors:
        for name in selector.names:
            if not _OF_OTHERS.match(name) and not any(re.fullmatch(name, each) for each in SERIES.keys() | RECORDED):
                yield f"no metric is called {name}"
        if selector.names[0] in SERIES:
            lacking = selector.labels.keys() - _labels_of(selector) - _ON_ALL_SERIES
            yield from (f"{selector.names[0]} has no label {label}" for label in lacking)
    used = set().union(*expression.groupings, *(selector.labels for selector in expression.selectors))
    unknown = used - LABELS - _ON_ALL_SERIES - _LABELS_OF_OTHERS - expression.made_labels
    yield from (f"no label is called {label}" for label in unknown)


def few_series(board: Board) -> Findings:
    """Nothing is grouped by a label that names one thing among very many."""
    for where, _, expression in _expressions(board):
        for label in set().union(*expression.groupings):
            if _IDS.fullmatch(label):
                yield f"{where} groups by {label}"


def links(board: Board) -> Findings:
    """A link to a board finds the board, and the variables that it sets there."""
    own = {each["name"] for each in board["templating"]["list"]}
    for uid, parameters in _BOARD_URL.findall(json.dumps(board)):
        if uid not in BOARDS:
            yield f"a link leads to {uid}, which does not exist"
            continue
        there = {each["name"] for each in BOARDS[uid]["templating"]["list"]}
        passed = set(re.findall(r"\$\{(\w+):queryparam\}", parameters))
        yield from (f"a link passes {name}, which {uid} does not have" for name in passed - there)
        yield from (f"a link passes {name}, which this board does not have" for name in passed - own)
        for name in set(re.findall(r"var-(\w+)=", parameters)) - there:
            yield f"a link sets {name}, which {uid} does not have"


def grid(board: Board) -> Findings:
    """Panels don't overlap, and rows are as wide as the grid or narrower."""
    taken: dict[tuple[int, int], int] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > WIDTH:
            yield f"panel {panel['id']} is beyond the grid"
        cells = product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        covered = {taken.setdefault(cell, panel["id"]) for cell in cells} - {panel["id"]}
        yield from (f"panel {panel['id']} covers panel {other}" for other in covered)


RULES_OF_BOARDS: Final = (
    *(identity, panel_ids, texts, data_sources, selection, windows, counters, quantiles, sums_of_spans),
    *(known_names, few_series, links, grid),
)


# Rules of alerts.


def labelled(alert: Alert) -> Findings:
    """An alert says how bad it is and who receives it."""
    if alert["labels"].get("severity") not in ("page", "ticket", "none"):
        yield f"the severity is {alert['labels'].get('severity')}"
    if not alert["labels"].get("team"):
        yield "no team receives it"


def annotated(alert: Alert) -> Findings:
    """An alert says what happens, and leads to its runbook and to a panel."""
    notes = alert["annotations"]
    yield from (f"there is no {name}" for name in ("summary", "description") if not notes.get(name))
    page, _, anchor = notes.get("runbook_url", "").partition("#")
    headings = (ROOT / page).read_text() if page and (ROOT / page).is_file() else ""
    if anchor not in {heading.lower() for heading in re.findall(r"^#+ (\w+)$", headings, re.MULTILINE)}:
        yield f"there is no runbook {page}#{anchor}"
    uid, _, panel = notes.get("dashboard_url", "").removeprefix("/d/").partition("?viewPanel=")
    if panel not in {str(each["id"]) for each in _panels(BOARDS.get(uid, {"panels": []}))}:
        yield f"there is no panel {panel} on the board {uid}"


def known_names_of_alert(alert: Alert) -> Findings:
    """Every metric and every label is one that is emitted."""
    yield from unknown_names(Expression(alert["expr"]))


RULES_OF_ALERTS: Final = (labelled, annotated, known_names_of_alert)
