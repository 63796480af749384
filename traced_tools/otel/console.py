"""Finished traces on stderr, as trees."""

from __future__ import annotations

import logging
import sys

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from traced_tools.observe.scope import error_type
from traced_tools.observe.span_tree import OpenTraces, build_trees, render_text, trace_id_of

_LOG = logging.getLogger(__name__)


class ConsoleProcessor(SpanProcessor):
    """Prints each trace once none of its spans is under way here, which is when its local root has ended.

    A stderr that takes nothing is told of in the log, once.
    """

    def __init__(self) -> None:
        self._traces: OpenTraces[ReadableSpan] = OpenTraces()
        self._told = False

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Remember that a span is under way."""
        self._print(self._traces.begin(trace_id_of(span)))

    def on_end(self, span: ReadableSpan) -> None:
        """Print the trace if this was the last of its spans."""
        self._print(self._traces.end(trace_id_of(span), span))

    def shutdown(self) -> None:
        """Print what is left, beside spans that never ended."""
        self._print(self._traces.drain())

    def _print(self, spans: list[ReadableSpan]) -> None:
        try:
            if spans:
                _write("".join(f"\n{render_text(tree)}\n" for tree in build_trees(spans)))
        except Exception as error:  # its text may quote what was to be printed
            if not self._told:
                _LOG.warning("configure(console=True) cannot print a trace to stderr: %s", error_type(error))
            self._told = True


def _write(text: str) -> None:
    """Write trees in one go, so that those of other threads stay outside.

    They begin on a line of their own: an answer may have been printed without its end.
    """
    if sys.stderr is None:
        return
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stderr.flush()
