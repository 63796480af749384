"""The fields in which a run of the small agent differs from that of our own loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.integrations.small_agent import own_run, without_our_loop


def differences(seen: dict[str, Any]) -> set[str]:
    """Return the kinds of fields that differ, such as `spans gen_ai.conversation.id`, of spans, events and records."""
    ours, theirs = _of_our_loop(), _fields(without_our_loop(seen))
    return {kind for kind, *_ in (ours - theirs) | (theirs - ours)}


@cache
def _of_our_loop() -> Counter[Any]:
    return _fields(without_our_loop(own_run().seen()))


def _fields(seen: dict[str, Any]) -> Counter[Any]:
    """Return each field with the kind of it, where it is and its value; the same field may occur several times."""
    return Counter((f"{section} {name}", where, repr(value)) for section, name, where, value in _each_field(seen))


def _each_field(seen: dict[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    for path, kind, status, attributes in seen["spans"]:
        yield "spans", "", path, (kind, status)
        yield from (("spans", name, path, value) for name, value in attributes)
    for name, severity, span, attributes in seen["log-based events"]:
        where = name, span, dict(attributes).get("traced_tools.iteration.index")
        yield "log-based events", "", where, severity
        yield from (("log-based events", key, where, value) for key, value in attributes)
    for (name, labels), count, value in seen["metrics"]:
        yield "metrics", name, labels, (count, value)
    for call_id, events in seen["events"].items():
        for index, event in enumerate(events):
            yield from (("events", name, (call_id, index), value) for name, value in event.items())
    for call_id, records in seen["records"].items():
        for index, (kind, fields, contents) in enumerate(records):
            yield "records", "", (call_id, index), kind
            yield from (("records", name, (call_id, index), value) for name, value in fields.items())
            yield from (("records", name, (call_id, index), value) for name, value in contents.items())
