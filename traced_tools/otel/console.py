"""Prints finished traces to stderr as trees."""

from __future__ import annotations

import logging
import sys

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from traced_tools.observe.failures import error_type
from traced_tools.observe.span_tree import OpenTraces, SpanNode, build_trees, render_text, trace_id_of

_LOG = logging.getLogger(__name__)


class ConsoleProcessor(SpanProcessor):
    """A span processor that prints each trace when none of its spans is open in this process.

    If stderr is not writable, a warning is logged once.
    """

    def __init__(self) -> None:
        self._traces: OpenTraces[ReadableSpan] = OpenTraces()
        self._has_warned = False

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Record that a span is open."""
        self._print(self._traces.begin(trace_id_of(span)))

    def on_end(self, span: ReadableSpan) -> None:
        """Print the trace if no other span of it is open."""
        self._print(self._traces.end(trace_id_of(span), span))

    def shutdown(self) -> None:
        """Print the buffered spans of traces in which a span never ended."""
        self._print(self._traces.drain())

    def render(self, tree: SpanNode) -> str:
        """Return the text of a trace."""
        return render_text(tree)

    def _print(self, spans: list[ReadableSpan]) -> None:
        try:
            if spans:
                write_to_stderr("".join(f"\n{self.render(tree)}\n" for tree in build_trees(spans)))
        except Exception as error:  # its text may quote the trace
            if not self._has_warned:
                _LOG.warning("configure(console=True) cannot print a trace to stderr: %s", error_type(error))
            self._has_warned = True


def write_to_stderr(text: str) -> None:
    """Write text in one call, so that other threads cannot write in between.

    Each tree begins with a newline, because the application may have printed text without one.
    """
    if sys.stderr is None:
        return
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stderr.flush()
