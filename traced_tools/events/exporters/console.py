"""Events as lines for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from typing import Any, Final, TextIO

from traced_tools.core.messages import Usage
from traced_tools.errors import ConfigurationError
from traced_tools.events.exporter import EventExporter, ExportFailed
from traced_tools.observe.event_types import Event, ToolEvent
from traced_tools.observe.span_tree import format_seconds

_WIDEST: Final = 160
_LONGEST: Final = 60
_SHORT_RUN: Final = len("0197a3b2-4c5d-7f12")
"""Characters of a run's id, enough for `traced-tools audit show`: its millisecond, and 12 bits more."""
_INDENTED: Final = {"run_started": 0, "run_finished": 0, "iteration_started": 1, "iteration_finished": 1}


class ConsoleEventExporter(EventExporter):
    r"""Prints a line for each event: when (UTC), the beginning of the run's id, and what happened.

    Lines are at most 160 characters wide and have no colours. What is not printable is written as Python would, so that
    no escape sequence of a model or a tool reaches a terminal. Of contents, where they are captured, lines show the
    beginning; whole conversations are in no line.

    Args:
        stream: where to; None for `sys.stderr`, looked up each time.

    Raises:
        ConfigurationError: when nothing can be written to the stream.
    """

    name = "console"
    interval = 0.0

    def __init__(self, stream: TextIO | None = None) -> None:
        if stream is not None and not callable(getattr(stream, "write", None)):
            raise ConfigurationError(f"stream must be a text stream or None, not {type(stream).__name__}")
        self._stream = stream

    def export(self, events: Sequence[Event]) -> None:
        """Print events; raises `ExportFailed`, which is not worth another attempt: a part may be printed already."""
        problem = None
        try:
            self._print("".join(f"{format_event(event)}\n" for event in events))
        except (OSError, ValueError, AttributeError) as error:  # full or gone, closed, or None
            problem = f"the console takes nothing ({type(error).__name__})"
        if problem is not None:
            raise ExportFailed(problem, retryable=False)

    def _print(self, text: str) -> None:
        stream = sys.stderr if self._stream is None else self._stream
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


def format_event(event: Event) -> str:
    """Return the line that tells of an event."""
    when = event.time.astimezone(UTC)
    indent = "  " * _INDENTED.get(event.type, 3 if isinstance(event, ToolEvent) else 2)
    said = ", ".join(dict.fromkeys(_facts(event)))  # an error is often of the same name as the outcome
    start = f"{when:%H:%M:%S}.{when.microsecond // 1000:03d}Z {_printable(event.run_id)[:_SHORT_RUN]}  {indent}"
    return _cut(f"{start}{_what(event)}{'  ' if said else ''}{said}", _WIDEST)


def _what(event: Event) -> str:
    """Return what happened, in two or three words."""
    kind = event.type.replace("_", " ")
    if isinstance(event, ToolEvent):
        return f"{_shown(event.tool)} {kind.removeprefix('tool ')}"
    if event.type.startswith("iteration_"):
        return f"{kind.replace(' ', f' {event.iteration} ')}"
    return kind


def _facts(event: Event) -> Iterator[str]:
    if event.type == "run_started":
        yield f"agent {_shown(event.agent)}"
    for field, show in _FACTS.items():
        value = getattr(event, field, None)
        if value is not None and value != "":
            yield show(value)


def _plain(value: Any) -> str:
    return _shown(str(value))


def _named(name: str) -> Callable[[Any], str]:
    return lambda value: f"{name} {_shown(str(value))}"


def _quoted(name: str) -> Callable[[Any], str]:
    return lambda value: f"{name} «{_shown(str(value))}»"


def _counted(noun: str) -> Callable[[int], str]:
    return lambda count: f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _tokens(usage: Usage) -> str:
    read, written = ("?" if count is None else count for count in (usage.input_tokens, usage.output_tokens))
    return f"{read} -> {written} tokens"


_FACTS: Final[dict[str, Callable[[Any], str]]] = {
    "call_id": _plain,
    "model": _named("model"),
    "stop_reason": _plain,
    "finish_reason": _plain,
    "decision": _plain,
    "outcome": _plain,
    "error_type": _plain,
    "by": _named("by"),
    "advisor": _named("by"),
    "reason_code": _plain,
    "iterations": _counted("iteration"),
    "tool_calls": _counted("tool call"),
    "usage": _tokens,
    "attempts": _counted("attempt"),
    "duration": format_seconds,
    "arguments_size": _counted("byte"),
    "result_size": _counted("byte"),
    "size": _counted("byte"),
    "intent": _quoted("reason"),
    "arguments": _quoted("arguments"),
    "result": _quoted("result"),
    "text": _quoted("text"),
}
"""How each field is told, in the order of the line; contents are there only where they are captured."""


def _shown(text: str) -> str:
    return _cut(_printable(text[: _LONGEST + 1]), _LONGEST)


def _printable(text: str) -> str:
    """Return a text with what is not printable written as Python would."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
