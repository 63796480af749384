"""Answers the TraceQL of tables from spans that ended in this process: https://grafana.com/docs/tempo/latest/traceql/.

It knows what the tables of the boards use: sets of spans with conditions, descendants, and `select`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_TOKEN: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|>>|&&|\|\||=~|!~|!=|>=|<=|[{}()|=<>,]|[^\s{}()|=<>!,"]+)')
_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0}
Condition = Callable[["EndedSpan"], bool]


@dataclass(frozen=True)
class EndedSpan:
    """A span.

    Attributes:
        trace_id: the id of its trace.
        span_id: its own id.
        parent_id: the id of its parent, if it has one.
        service: the name of its service.
        name: its name.
        start: when it started, as Unix time.
        seconds: how long it took.
        is_error: whether its status is an error.
        attributes: its attributes.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    service: str
    name: str
    start: float
    seconds: float
    is_error: bool
    attributes: Mapping[str, Any]

    def value(self, field: str) -> Any:
        """Return the value of a field of TraceQL; None if the span doesn't have it."""
        match field:
            case "name":
                return self.name
            case "duration":
                return self.seconds
            case "status":
                return "error" if self.is_error else "unset"
            case "resource.service.name":
                return self.service
        return self.attributes.get(field.removeprefix("span."))


class UnknownQuery(Exception):
    """The query uses a part of TraceQL that only Tempo knows."""


def matching(query: str, spans: Sequence[EndedSpan]) -> tuple[list[EndedSpan], list[str]]:
    """Return the spans of a query, the newest first, and the attributes that it selects.

    Raises:
        UnknownQuery: only Tempo can answer the query.
    """
    return _Parser(query).answer(spans)


class _Parser:
    def __init__(self, query: str) -> None:
        self._tokens = _TOKEN.findall(query)
        self._at = 0

    def answer(self, spans: Sequence[EndedSpan]) -> tuple[list[EndedSpan], list[str]]:
        found = list(filter(self._span_set(), spans))
        while self._next() == ">>":
            self._take(">>")
            found = _descendants(found, list(filter(self._span_set(), spans)), spans)
        selected = []
        if self._next() == "|":
            for expected in ("|", "select", "("):
                self._take(expected)
            while self._next() != ")":
                selected.append(self._take().removeprefix("span."))
                if self._next() == ",":
                    self._take(",")
            self._take(")")
        if self._at != len(self._tokens):
            raise UnknownQuery
        return sorted(found, key=lambda span: -span.start), selected

    def _span_set(self) -> Condition:
        self._take("{")
        condition = self._any()
        self._take("}")
        return condition

    def _any(self) -> Condition:
        choices = [self._all()]
        while self._next() == "||":
            self._take("||")
            choices.append(self._all())
        return lambda span: any(choice(span) for choice in choices)

    def _all(self) -> Condition:
        parts = [self._comparison()]
        while self._next() == "&&":
            self._take("&&")
            parts.append(self._comparison())
        return lambda span: all(part(span) for part in parts)

    def _comparison(self) -> Condition:
        if self._next() == "(":
            self._take("(")
            inner = self._any()
            self._take(")")
            return inner
        field, operator, expected = self._take(), self._take(), _literal(self._take())
        return lambda span: _holds(span.value(field), operator, expected)

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, expected: str | None = None) -> str:
        token = self._next()
        if not token or expected not in (None, token):
            raise UnknownQuery
        self._at += 1
        return token


def _descendants(
    ancestors: Sequence[EndedSpan], candidates: Sequence[EndedSpan], spans: Sequence[EndedSpan]
) -> list[EndedSpan]:
    parents = {span.span_id: span.parent_id for span in spans}
    above = {span.span_id for span in ancestors}

    def has_ancestor(span: EndedSpan) -> bool:
        parent = span.parent_id
        while parent is not None and parent not in above:
            parent = parents.get(parent)
        return parent is not None

    return [span for span in candidates if has_ancestor(span)]


def _literal(token: str) -> str | float | None:
    if token.startswith('"'):
        return token[1:-1]
    if number := re.fullmatch(r"(-?[\d.]+)(ms|s|m)?", token):
        return float(number[1]) * _UNITS.get(number[2] or "s", 1.0)
    return None if token == "nil" else token


def _holds(value: Any, operator: str, expected: str | float | None) -> bool:
    if expected is None:
        return (value is None) == (operator == "=")
    if value is None:
        return False
    if isinstance(expected, float):
        order = float(value)
        compared = {"=": order == expected, "!=": order != expected, ">": order > expected, "<": order < expected}
        return {**compared, ">=": order >= expected, "<=": order <= expected}[operator]
    texts = [str(each) for each in value] if isinstance(value, tuple | list) else [str(value)]
    match operator:
        case "=":
            return expected in texts
        case "!=":
            return expected not in texts
        case "=~":
            return any(re.fullmatch(expected, text) for text in texts)
        case "!~":
            return not any(re.fullmatch(expected, text) for text in texts)
    raise UnknownQuery
