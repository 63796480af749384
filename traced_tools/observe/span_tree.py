"""Finished spans as a readable tree with durations, results and errors.

The functions work on any object with the properties of a finished span. They copy only attributes of the telemetry
registry, and a summary contains counts, names, codes and times, never content.
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
    """The properties of a finished span that the functions here read. The SDK's `ReadableSpan` has them."""

    @property
    def name(self) -> str:
        """The span's name."""

    @property
    def parent(self) -> SpanContext | None:
        """The context of the parent span, in this process or another; None for a root span."""

    @property
    def start_time(self) -> int | None:
        """Nanoseconds since 1970."""

    @property
    def end_time(self) -> int | None:
        """Nanoseconds since 1970."""

    @property
    def status(self) -> Status:
        """The span's status."""

    @property
    def attributes(self) -> Mapping[str, AttributeValue] | None:
        """The span's attributes."""

    def get_span_context(self) -> SpanContext | None:
        """Return the span's context, with its trace id and span id."""


@dataclass(slots=True)
class SpanNode:
    """A span with its child spans.

    Args:
        name: the span's name.
        duration: seconds.
        error_type: the type of the error if the span failed, else None.
        attributes: the attributes that are in the telemetry registry.
        key: the trace id and the span id.
        children: the child spans, in the order in which they started.
    """

    name: str
    duration: float
    error_type: str | None
    attributes: Mapping[str, AttributeValue]
    key: tuple[int, int] = (0, 0)
    children: list[SpanNode] = field(default_factory=list)


def build_trees(spans: Iterable[FinishedSpan]) -> list[SpanNode]:
    """Return the spans without a parent among `spans`, with their descendants, in the order in which they started."""
    roots: list[SpanNode] = []
    nodes: dict[tuple[int, int], SpanNode] = {}
    ordered = sorted(spans, key=lambda span: span.start_time or 0)
    for span in ordered:
        nodes[_key(span.get_span_context())] = _node(span)
    for span in ordered:
        parent = nodes.get(_key(span.parent))
        (roots if parent is None else parent.children).append(nodes[_key(span.get_span_context())])
    return roots


def summarize(node: SpanNode) -> str:
    """Return a short summary of a span, such as `812 -> 93 tokens`, `denied` or `self 0.12 ms`; may be empty."""
    return ", ".join(mask_unprintable(fact) for find in _FACTS for fact in find(node.attributes))


def summarize_time(node: SpanNode) -> str:
    """Return what the time of a run went to, such as `model 64.3 ms (96%), own 2.40 ms (4%)`; empty for other spans."""
    booked = {kind: node.attributes.get(name) for kind, name in names.TIME_BY_KIND.items()}
    seconds = {kind: value for kind, value in booked.items() if isinstance(value, float) and value > 0}
    most = sorted(seconds.items(), key=lambda item: item[1], reverse=True)
    return ", ".join(f"{kind} {format_seconds(value)} ({value / sum(seconds.values()):.0%})" for kind, value in most)


def render_text(node: SpanNode) -> str:
    """Return a tree as lines of plain text, each with name, duration, summary and the error type of a failed span.

    If the root is a run, a last line says what its time went to.
    """
    rows = list(tree_rows(node))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {_line(span)}".rstrip() for name, span in rows]
    time = summarize_time(node)
    return "\n".join([*lines, f"time: {time}"] if time else lines)


class OpenTraces(Generic[SpanT]):
    """Buffers the finished spans of each trace until none of its spans is open, so that a trace is printed whole.

    Args:
        most_traces: the maximum number of open traces. Above it, the oldest trace is released incomplete.
        most_spans: the maximum number of buffered spans of a trace. Above it, they are released, and the rest follows.
    """

    def __init__(self, most_traces: int = 1_000, most_spans: int = 10_000) -> None:
        self._most_traces = most_traces
        self._most_spans = most_spans
        self._reset()
        on_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.RLock()  # reentrant: the garbage collector may end a span while this thread holds it
        self._open: dict[int, int] = {}
        self._ended: dict[int, list[SpanT]] = {}

    def begin(self, trace_id: int) -> list[SpanT]:
        """Record that a span has started, and return the spans that are released now."""
        with self._lock:
            self._open[trace_id] = self._open.get(trace_id, 0) + 1
            return self._take(next(iter(self._open))) if len(self._open) > self._most_traces else []

    def end(self, trace_id: int, span: SpanT) -> list[SpanT]:
        """Record that a span has ended, and return the spans that are released now."""
        with self._lock:
            open_spans = self._open.get(trace_id, 1) - 1
            self._ended.setdefault(trace_id, []).append(span)
            if not open_spans:
                return self._take(trace_id)
            self._open[trace_id] = open_spans
            return self._ended.pop(trace_id) if len(self._ended[trace_id]) >= self._most_spans else []

    def drain(self) -> list[SpanT]:
        """Release all buffered spans."""
        with self._lock:
            return [span for trace_id in list(self._ended) for span in self._take(trace_id)]

    def _take(self, trace_id: int) -> list[SpanT]:
        self._open.pop(trace_id, None)
        return self._ended.pop(trace_id, [])


def trace_id_of(span: FinishedSpan) -> int:
    """Return the trace id of a span; 0 if it has none."""
    return _key(span.get_span_context())[0]


def format_seconds(seconds: float) -> str:
    """Return a duration as readable text, such as `0.12 ms`, `31.4 ms` or `2.05 s`."""
    milliseconds = seconds * 1000
    if milliseconds < 10:
        return f"{milliseconds:.2f} ms"
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{seconds:.2f} s"


def mask_unprintable(text: str) -> str:
    """Return `text` with `?` for each unprintable character, so that a name cannot control the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _key(context: SpanContext | None) -> tuple[int, int]:
    return (0, 0) if context is None else (context.trace_id, context.span_id)


def _node(span: FinishedSpan) -> SpanNode:
    attributes = {name: value for name, value in (span.attributes or {}).items() if name in names.ATTRIBUTES}
    nanoseconds = (span.end_time or 0) - (span.start_time or 0) if span.end_time else 0
    error, key = _error_type(span.status, attributes), _key(span.get_span_context())
    return SpanNode(span.name, nanoseconds / 1_000_000_000, error, attributes, key)


def _error_type(status: Status, attributes: Mapping[str, AttributeValue]) -> str | None:
    if status.status_code is not StatusCode.ERROR:
        return None
    return str(attributes.get(names.ERROR_TYPE, names.OTHER))


def tree_rows(node: SpanNode, first: str = "", below: str = "") -> Iterator[tuple[str, SpanNode]]:
    """Yield each node of a tree with its text: branch characters and the span's name.

    Args:
        node: the root of the tree.
        first: the prefix of the root's text.
        below: the prefix of the texts of its descendants.
    """
    yield first + mask_unprintable(node.name), node
    for index, child in enumerate(node.children, start=1):
        last = index == len(node.children)
        yield from tree_rows(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))


def _line(node: SpanNode) -> str:
    failure = None if node.error_type is None else f"failed: {mask_unprintable(node.error_type)}"
    facts = filter(None, (summarize(node), failure))
    return f"{format_seconds(node.duration):>9}  {'  '.join(facts)}"


SpanAttributes = Mapping[str, AttributeValue]


def _tokens(attributes: SpanAttributes) -> Iterator[str]:
    input_tokens, output_tokens = attributes.get(names.USAGE_INPUT_TOKENS), attributes.get(names.USAGE_OUTPUT_TOKENS)
    if attributes.get(names.OPERATION_NAME) == names.EMBEDDINGS:  # an embedding has no output tokens
        yield from _count(input_tokens, "token")
    elif input_tokens is not None or output_tokens is not None:
        counts = ("?" if count is None else count for count in (input_tokens, output_tokens))
        yield f"{' -> '.join(map(str, counts))} tokens"


def _resend_note(attributes: SpanAttributes) -> Iterator[str]:
    again = attributes.get(names.RESEND_COUNT)
    if isinstance(again, int) and again > 0:
        yield f"sent {again + 1} times"


def _tool(attributes: SpanAttributes) -> Iterator[str]:
    """Yield the outcome of a tool, and the decision with who made it and the reason code unless it was allowed."""
    outcome, decision = attributes.get(names.TOOL_OUTCOME), attributes.get(names.TOOL_DECISION)
    if outcome is not None and outcome != attributes.get(names.ERROR_TYPE):
        yield str(outcome)
    if decision == "approved" or (outcome is None and decision is not None):
        decider = attributes.get(names.APPROVAL_BY) or attributes.get(names.ADVISOR_NAME)
        code = attributes.get(names.REASON_CODE)
        note = f"{decision}{f' by {decider}' if decider else ''}{f' ({code})' if code else ''}"
        if note != attributes.get(names.ERROR_TYPE):
            yield note
    attempts = attributes.get(names.TOOL_ATTEMPTS)
    if isinstance(attempts, int) and attempts > 1:
        yield f"{attempts} attempts"


def _run(attributes: SpanAttributes) -> Iterator[str]:
    if names.LOOP_STOP_REASON in attributes:
        yield str(attributes[names.LOOP_STOP_REASON])
    yield from _count(attributes.get(names.LOOP_ITERATIONS), "iteration")
    yield from _count(attributes.get(names.LOOP_TOOL_CALLS), "tool call")


def _iteration(attributes: SpanAttributes) -> Iterator[str]:
    yield from _count(attributes.get(names.ITERATION_TOOL_CALLS), "tool call")


def _self_time(attributes: SpanAttributes) -> Iterator[str]:
    seconds = attributes.get(names.ADVISOR_SELF_TIME)
    if isinstance(seconds, float):
        yield f"self {format_seconds(seconds)}"


def _count(count: AttributeValue | None, noun: str) -> Iterator[str]:
    if isinstance(count, int) and count > 0:
        yield f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_FACTS: tuple[Callable[[SpanAttributes], Iterator[str]], ...] = (
    _run,
    _iteration,
    _tokens,
    _resend_note,
    _tool,
    _self_time,
)
