"""Finished spans as a tree that people can read: what ran inside what, how long it took, what came of it.

Pure functions over anything shaped like a finished span. Only attributes of the name table are taken over, and a
summary is made of counts, words from closed lists and times: no content.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from opentelemetry.trace import SpanContext
from opentelemetry.trace.status import Status, StatusCode
from opentelemetry.util.types import AttributeValue

from traced_tools.core.fork import on_fork
from traced_tools.observe import names

SpanT = TypeVar("SpanT")


class FinishedSpan(Protocol):
    """What is read of a span; the SDK's `ReadableSpan` has it all."""

    @property
    def name(self) -> str:
        """The span's name."""

    @property
    def parent(self) -> SpanContext | None:
        """The identity of the span above, in this process or another."""

    @property
    def start_time(self) -> int | None:
        """Nanoseconds since 1970."""

    @property
    def end_time(self) -> int | None:
        """Nanoseconds since 1970."""

    @property
    def status(self) -> Status:
        """Whether it failed."""

    @property
    def attributes(self) -> Mapping[str, AttributeValue] | None:
        """What is known of it."""

    def get_span_context(self) -> SpanContext | None:
        """Return the span's own identity."""


@dataclass(slots=True)
class SpanNode:
    """A span and what ran inside it.

    Args:
        name: the span's name.
        duration: seconds.
        error_type: what failed it, or None.
        attributes: those of its attributes that are in the name table.
        children: the spans below, in the order they started.
    """

    name: str
    duration: float
    error_type: str | None
    attributes: Mapping[str, AttributeValue]
    children: list[SpanNode] = field(default_factory=list)


def build_trees(spans: Iterable[FinishedSpan]) -> list[SpanNode]:
    """Return the spans that have no parent among `spans`, each with what is below it, all in the order they started."""
    roots: list[SpanNode] = []
    nodes: dict[tuple[int, int], SpanNode] = {}
    begun = sorted(spans, key=lambda span: span.start_time or 0)
    for span in begun:
        nodes[_key(span.get_span_context())] = _node(span)
    for span in begun:
        parent = nodes.get(_key(span.parent))
        (roots if parent is None else parent.children).append(nodes[_key(span.get_span_context())])
    return roots


def summarize(node: SpanNode) -> str:
    """Return the short facts of a span, such as `812 -> 93 tokens`, `denied` or `self 0.12 ms`; empty without any."""
    return ", ".join(mask_unprintable(fact) for find in _FACTS for fact in find(node.attributes))


def render_text(node: SpanNode) -> str:
    """Return the tree as lines of plain text: name, duration, facts and, for what failed, the type of the error."""
    rows = list(tree_rows(node))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {_line(each)}".rstrip() for name, each in rows)


class OpenTraces(Generic[SpanT]):
    """Holds the spans of a trace back until none of them is under way, so that it can be shown whole.

    Args:
        most_traces: how many traces are held at once; past that the oldest is given out with what there is of it.
        most_spans: how many spans of one trace are held; past that they are given out and the trace starts afresh.
    """

    def __init__(self, most_traces: int = 1_000, most_spans: int = 10_000) -> None:
        self._most_traces = most_traces
        self._most_spans = most_spans
        self._begin_empty()
        on_fork(self._begin_empty)

    def _begin_empty(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may end a span while its thread is in here
        self._under_way: dict[int, int] = {}
        self._ended: dict[int, list[SpanT]] = {}

    def begin(self, trace_id: int) -> list[SpanT]:
        """Note that a span has started, and return what is to be shown now."""
        with self._lock:
            self._under_way[trace_id] = self._under_way.get(trace_id, 0) + 1
            return self._take(next(iter(self._under_way))) if len(self._under_way) > self._most_traces else []

    def end(self, trace_id: int, span: SpanT) -> list[SpanT]:
        """Note that a span has ended, and return what is to be shown now."""
        with self._lock:
            left = self._under_way.get(trace_id, 1) - 1
            self._ended.setdefault(trace_id, []).append(span)
            if not left:
                return self._take(trace_id)
            self._under_way[trace_id] = left
            return self._ended.pop(trace_id) if len(self._ended[trace_id]) >= self._most_spans else []

    def drain(self) -> list[SpanT]:
        """Return all spans that are held."""
        with self._lock:
            return [span for trace_id in list(self._ended) for span in self._take(trace_id)]

    def _take(self, trace_id: int) -> list[SpanT]:
        self._under_way.pop(trace_id, None)
        return self._ended.pop(trace_id, [])


def trace_id_of(span: FinishedSpan) -> int:
    """Return the id of the trace a span belongs to; 0 for none."""
    return _key(span.get_span_context())[0]


def format_seconds(seconds: float) -> str:
    """Return a duration as people write it: `0.12 ms`, `31.4 ms`, `2.05 s`."""
    milliseconds = seconds * 1000
    if milliseconds < 10:
        return f"{milliseconds:.2f} ms"
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{seconds:.2f} s"


def mask_unprintable(text: str) -> str:
    """Return `text` without control characters: a name must not move the cursor of whoever reads it."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _key(context: SpanContext | None) -> tuple[int, int]:
    return (0, 0) if context is None else (context.trace_id, context.span_id)


def _node(span: FinishedSpan) -> SpanNode:
    attributes = {name: value for name, value in (span.attributes or {}).items() if name in names.ATTRIBUTES}
    nanoseconds = (span.end_time or 0) - (span.start_time or 0) if span.end_time else 0
    return SpanNode(span.name, nanoseconds / 1_000_000_000, _error_type(span.status, attributes), attributes)


def _error_type(status: Status, attributes: Mapping[str, AttributeValue]) -> str | None:
    if status.status_code is not StatusCode.ERROR:
        return None
    return str(attributes.get(names.ERROR_TYPE, names.OTHER))


def tree_rows(node: SpanNode, first: str = "", below: str = "") -> Iterator[tuple[str, SpanNode]]:
    """Give each node of a tree with its name behind the branches that lead to it.

    Args:
        node: the top of the tree.
        first: what stands before its name.
        below: what stands before what is under it.
    """
    yield first + mask_unprintable(node.name), node
    for index, child in enumerate(node.children, start=1):
        last = index == len(node.children)
        yield from tree_rows(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))


def _line(node: SpanNode) -> str:
    failed = None if node.error_type is None else f"failed: {mask_unprintable(node.error_type)}"
    facts = filter(None, (summarize(node), failed))
    return f"{format_seconds(node.duration):>9}  {'  '.join(facts)}"


SpanAttributes = Mapping[str, AttributeValue]


def _tokens(attributes: SpanAttributes) -> Iterator[str]:
    read, written = attributes.get(names.USAGE_INPUT_TOKENS), attributes.get(names.USAGE_OUTPUT_TOKENS)
    if attributes.get(names.OPERATION_NAME) == names.EMBEDDINGS:  # which writes none
        yield from _counted(read, "token")
    elif read is not None or written is not None:
        yield f"{'?' if read is None else read} -> {'?' if written is None else written} tokens"


def _resent(attributes: SpanAttributes) -> Iterator[str]:
    again = attributes.get(names.RESEND_COUNT)
    if isinstance(again, int) and again > 0:
        yield f"sent {again + 1} times"


def _tool(attributes: SpanAttributes) -> Iterator[str]:
    """Give the outcome of a tool or, if it did not run, the decision about the call, with who decided and why."""
    outcome, decision = attributes.get(names.TOOL_OUTCOME), attributes.get(names.TOOL_DECISION)
    if outcome is None and decision is not None:
        by = attributes.get(names.APPROVAL_BY) or attributes.get(names.ADVISOR_NAME)
        code = attributes.get(names.REASON_CODE)
        outcome = f"{decision}{f' by {by}' if by else ''}{f' ({code})' if code else ''}"
    if outcome is not None and outcome != attributes.get(names.ERROR_TYPE):
        yield str(outcome)
    attempts = attributes.get(names.TOOL_ATTEMPTS)
    if isinstance(attempts, int) and attempts > 1:
        yield f"{attempts} attempts"


def _run(attributes: SpanAttributes) -> Iterator[str]:
    if names.LOOP_STOP_REASON in attributes:
        yield str(attributes[names.LOOP_STOP_REASON])
    yield from _counted(attributes.get(names.LOOP_ITERATIONS), "iteration")
    yield from _counted(attributes.get(names.LOOP_TOOL_CALLS), "tool call")


def _iteration(attributes: SpanAttributes) -> Iterator[str]:
    yield from _counted(attributes.get(names.ITERATION_TOOL_CALLS), "tool call")


def _self_time(attributes: SpanAttributes) -> Iterator[str]:
    seconds = attributes.get(names.ADVISOR_SELF_TIME)
    if isinstance(seconds, float):
        yield f"self {format_seconds(seconds)}"


def _counted(count: AttributeValue | None, noun: str) -> Iterator[str]:
    if isinstance(count, int) and count > 0:
        yield f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_FACTS: tuple[Callable[[SpanAttributes], Iterator[str]], ...] = (_run, _iteration, _tokens, _resent, _tool, _self_time)
