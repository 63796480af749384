"""What LogQL queries name and which log records they select, read from the syntax trees of Grafana's grammar.

The rules are Loki's: https://grafana.com/docs/loki/latest/query/log_queries/. A record that lacks a label has the empty
text for it, and a pattern matches whole values.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.dashboards.node import NPM, run_node

_ON_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "=~": lambda value, pattern: re.fullmatch(pattern, value) is not None,
    "!~": lambda value, pattern: re.fullmatch(pattern, value) is None,
}
_ON_NUMBERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Node:
    """A part of a query.

    Attributes:
        name: what it is in the grammar.
        text: its text in the query.
        children: its parts.
    """

    name: str
    text: str
    children: tuple[Node, ...]

    @classmethod
    def of(cls, tree: Any) -> Node:
        """Make a node of what `logql_trees.mjs` prints."""
        name, text, children = tree
        return cls(name, text, tuple(map(cls.of, children)))

    def all(self, *names: str) -> Iterator[Node]:
        """Yield the nodes of these names, this one included."""
        if self.name in names:
            yield self
        for child in self.children:
            yield from child.all(*names)

    @property
    def labels(self) -> list[str]:
        """The labels in this node."""
        return [node.text for node in self.all("Identifier")]


@dataclass(frozen=True)
class Selected:
    """The log records that a part of a query selects, and the labels that it reads of them.

    Attributes:
        stream: the matchers of the stream.
        filters: the filters of the pipeline.
        read: the labels that it unwraps, or that it groups by.
        unwrapped: the labels that it unwraps.
        extracted: the paths in a record's body that it extracts with `json`.
    """

    stream: tuple[Node, ...]
    filters: tuple[Node, ...]
    read: frozenset[str]
    unwrapped: frozenset[str]
    extracted: tuple[str, ...]

    @property
    def labels(self) -> set[str]:
        """The labels of the records, without those of the stream."""
        return {*self.read, *(label for each in self.filters for label in each.labels)}

    def events(self) -> set[str]:
        """Return the names of the events that the filters name; none if the query is for all events."""
        named = [node for each in self.filters for node in each.all("Matcher") if node.labels == ["event_name"]]
        return {name for node in named for name in _text(node.children[-1]).split("|")}

    def selects(self, record: Mapping[str, str]) -> bool:
        """Whether a record with these labels is among the records."""
        return all(_matches(each, record) for each in (*self.stream, *self.filters))


def selections(queries: Sequence[str]) -> list[list[Selected]]:
    """Return for each query the records that its parts select."""
    standard_input = "\n".join(map(json.dumps, queries))
    done = run_node(NPM / "logql_trees.mjs", needs="@grafana/lezer-logql", standard_input=standard_input)
    assert done.returncode == 0, done.stderr
    return [list(_selected(Node.of(json.loads(line)), frozenset())) for line in done.stdout.splitlines()]


def _selected(node: Node, grouping: frozenset[str]) -> Iterator[Selected]:
    """Yield what each part of a node selects, which is grouped by labels of the nodes around it."""
    if node.name in ("VectorAggregationExpr", "RangeAggregationExpr"):
        grouping |= {label for child in node.children if child.name == "Grouping" for label in child.labels}
    if node.name not in ("LogExpr", "LogRangeExpr"):
        for child in node.children:
            yield from _selected(child, grouping)
        return
    (stream,) = node.all("Selector")
    unwrapped = frozenset(label for each in node.all("UnwrapExpr") for label in each.labels)
    stages = [child for each in node.all("PipelineStage") for child in each.children]
    filters = tuple(each for each in stages if each.name == "LabelFilter")
    extracted = tuple(_text(each.children[-1]) for each in node.all("LabelExtractionExpression"))
    yield Selected(tuple(stream.all("Matcher")), filters, unwrapped | grouping, unwrapped, extracted)


def _matches(node: Node, record: Mapping[str, str]) -> bool:
    if node.name == "LabelFilter":
        first, *rest = node.children
        if rest and rest[0].name in ("And", "Or"):
            both = _matches(first, record), _matches(rest[1], record)
            return all(both) if rest[0].name == "And" else any(both)
        return _matches(first, record)
    label, comparison, value = node.children
    found = record.get(label.text, "")
    if node.name == "NumberFilter":
        return bool(found) and _ON_NUMBERS[comparison.text](float(found), float(value.text))
    assert node.name == "Matcher", f"the tests do not know {node.name}: {node.text}"
    return _ON_TEXTS[comparison.text](found, _text(value))


def _text(node: Node) -> str:
    return node.text[1:-1] if node.text.startswith("`") else str(json.loads(node.text))
