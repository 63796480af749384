"""The tree of spans as paths of names, which the programs under test print."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.sdk.trace import ReadableSpan


def paths_of(spans: Iterable[ReadableSpan]) -> list[list[str]]:
    """Return each span's name after the names above it, sorted; `?` stands for a parent that is not among them."""
    by_id = {span.get_span_context().span_id: span for span in spans}

    def path(span: ReadableSpan) -> list[str]:
        if span.parent is None:
            return [span.name]
        parent = by_id.get(span.parent.span_id)
        return [*(["?"] if parent is None else path(parent)), span.name]

    return sorted(path(span) for span in by_id.values())
