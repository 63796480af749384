"""Every query of the boards in `dashboards/classic` and of the rules in `dashboards/rules`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests import yaml_files
from tests.judges.programs import ROOT

DASHBOARDS = ROOT / "dashboards"
Language = Literal["promql", "logql", "traceql"]
_LANGUAGES: dict[str, Language] = {"prometheus": "promql", "loki": "logql", "tempo": "traceql"}
_TEXTS = {"promql": "expr", "logql": "expr", "traceql": "query"}
_OF_GRAFANA = {
    "__rate_interval": "5m",
    "__interval": "1m",
    "__interval_ms": "60000",
    "__auto": "5m",
    "__range": "1h",
    "__range_s": "3600",
    "__range_ms": "3600000",
}
"""Variables that Grafana sets in each query. It requires no declaration of them."""
_VARIABLE = re.compile(r"\$([^\W\d]\w*)|\$\{(\w+)(?:[:.][^}]*)?\}|\[\[(\w+)\]\]")


@dataclass(frozen=True)
class BoardQuery:
    """A query of a board or a rule file.

    Attributes:
        board: the uid of the board; of a rule, the name of its file.
        panel: the id of the panel; None for a variable, an annotation or a rule.
        title: the title of the panel, or the name of the variable, annotation or rule.
        language: the query language.
        text: the query with Grafana's variables.
        exemplars: whether the panel shows exemplars.
        legend: the text that names each series, with `{{label}}` for the value of a label.
        is_instant: whether the query is evaluated at one time rather than over a range.
        variables: the value for all values of each variable of the board.
    """

    board: str
    panel: int | None
    title: str
    language: Language
    text: str
    exemplars: bool = False
    legend: str = ""
    is_instant: bool = False
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.board} {'-' if self.panel is None else self.panel} {self.title}"

    def resolve(self, **values: str) -> str:
        """Return the query with a value for each variable: from `values`, of Grafana, or the one for all values.

        Raises:
            KeyError: neither the board nor Grafana has the variable.
        """
        known = {**_OF_GRAFANA, **self.variables, **values}
        return _VARIABLE.sub(lambda found: known[found[1] or found[2] or found[3]], self.text)


def files(folder: str, pattern: str) -> list[Path]:
    """Return the files of a folder of `dashboards`, which has some."""
    found = sorted((DASHBOARDS / folder).glob(pattern))
    assert found, f"dashboards/{folder} has no {pattern}"
    return found


def all_queries() -> list[BoardQuery]:
    """Return the queries of all boards and rules."""
    boards = (json.loads(path.read_text()) for path in files("classic", "*.json"))
    rules = ((path.name, yaml_files.load(path.read_text())) for path in files("rules", "*.yaml"))
    return [*(each for board in boards for each in queries_of_board(board))] + [
        BoardQuery(name, None, rule.get("alert") or rule["record"], "promql", rule["expr"], is_instant=True)
        for name, content in rules
        for group in content["groups"]
        for rule in group["rules"]
    ]


def queries_of_board(board: Mapping[str, Any]) -> Iterator[BoardQuery]:
    """Yield the queries of a board: those of its panels, also in rows, of its variables, and of its annotations."""
    uid, declared = board["uid"], board.get("templating", {}).get("list", [])
    variables = {each["name"]: each.get("allValue") or ".+" for each in declared}
    for panel in _panels(board):
        for target in panel.get("targets", []):
            language = _language(target.get("datasource") or panel["datasource"])
            if language is not None:
                yield BoardQuery(
                    uid,
                    panel["id"],
                    panel["title"],
                    language,
                    target[_TEXTS[language]],
                    exemplars=target.get("exemplar", False),
                    legend=target.get("legendFormat", ""),
                    is_instant=target.get("instant", False) or target.get("queryType") == "instant",
                    variables=variables,
                )
    for variable in declared:
        if variable["type"] == "query" and (language := _language(variable["datasource"])):
            for text in _selectors(variable["query"]):
                yield BoardQuery(uid, None, variable["name"], language, text, is_instant=True, variables=variables)
    for annotation in board.get("annotations", {}).get("list", []):
        if language := _language(annotation["datasource"]):
            text = {**annotation, **annotation.get("target", {})}[_TEXTS[language]]
            yield BoardQuery(uid, None, annotation["name"], language, text, variables=variables)


def _panels(board: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", [])  # of a collapsed row


def _language(datasource: Mapping[str, str]) -> Language | None:
    """Return the query language of a data source; None for Grafana's own, which has none."""
    kind = datasource["type"]
    return None if kind in ("grafana", "datasource") else _LANGUAGES[kind]


def _selectors(query: str | Mapping[str, Any]) -> list[str]:
    """Return what a variable asks a data source in its language: `label_values(SELECTOR, LABEL)` is Grafana's own."""
    if not isinstance(query, str):
        query = query.get("stream") or query.get("query") or ""
    if found := re.fullmatch(r"label_values\((?:(.+), *)?\w+\)", query):
        return [found[1]] if found[1] else []
    if found := re.fullmatch(r"query_result\((.+)\)", query):
        return [found[1]]
    return [query] if query else []
