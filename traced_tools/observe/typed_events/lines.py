"""Each typed event as one readable line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any, Final

from traced_tools.core.messages import Usage
from traced_tools.core.readable import is_seen
from traced_tools.observe.span_tree import format_seconds
from traced_tools.observe.typed_events.types import Event, ToolEvent

_WIDEST: Final = 160
_LONGEST: Final = 60
_SHORT_RUN: Final = len("0197a3b2-4c5d-7f12")
"""Characters of a run id that are printed, enough for `traced-tools audit show`: the millisecond and 12 more bits."""
_INDENTED: Final = {"run_started": 0, "run_finished": 0, "iteration_started": 1, "iteration_finished": 1}


def format_event(event: Event) -> str:
    """Return the line of an event."""
    time = event.time.astimezone(UTC)
    indent = "  " * _INDENTED.get(event.type, 3 if isinstance(event, ToolEvent) else 2)
    facts = ", ".join(dict.fromkeys(_facts(event)))  # without duplicates: outcome and error type are often the same
    start = f"{time:%H:%M:%S}.{time.microsecond // 1000:03d}Z {_escape(event.run_id)[:_SHORT_RUN]}  {indent}"
    return _cut(f"{start}{_title(event)}{'  ' if facts else ''}{facts}", _WIDEST)


def _title(event: Event) -> str:
    """Return the event in two or three words, such as `get_weather started`."""
    kind = event.type.replace("_", " ")
    if isinstance(event, ToolEvent):
        return f"{_short(event.tool)} {kind.removeprefix('tool ')}"
    if event.type.startswith("iteration_"):
        return f"{kind.replace(' ', f' {event.iteration} ')}"
    return kind


def _facts(event: Event) -> Iterator[str]:
    if event.type == "run_started":
        yield f"agent {_short(event.agent)}"
    for field, show in _FACTS.items():
        value = getattr(event, field, None)
        if value is not None and value != "":
            yield show(value)


def _plain(value: Any) -> str:
    return _short(str(value))


def _with_name(name: str) -> Callable[[Any], str]:
    return lambda value: f"{name} {_short(str(value))}"


def _with_quotes(name: str) -> Callable[[Any], str]:
    return lambda value: f"{name} «{_short(str(value))}»"


def _with_count(noun: str) -> Callable[[int], str]:
    return lambda count: f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _with_words(words: str) -> Callable[[int], str]:
    return lambda count: f"{count} {words}"


def _tokens(usage: Usage) -> str:
    input_tokens, output_tokens = (
        "?" if count is None else count for count in (usage.input_tokens, usage.output_tokens)
    )
    return f"{input_tokens} -> {output_tokens} tokens"


_FACTS: Final[dict[str, Callable[[Any], str]]] = {
    "call_id": _plain,
    "name": _plain,
    "score": _with_name("score"),
    "label": _plain,
    "model": _with_name("model"),
    "stop_reason": _plain,
    "finish_reason": _plain,
    "decision": _plain,
    "outcome": _plain,
    "error_type": _plain,
    "by": _with_name("by"),
    "advisor": _with_name("by"),
    "reason_code": _plain,
    "iterations": _with_count("iteration"),
    "tool_calls": _with_count("tool call"),
    "usage": _tokens,
    "trigger": _with_name("trigger"),
    "strategy": _with_name("strategy"),
    "covered": _with_words("covered"),
    "messages": _with_count("message"),
    "left_out": _with_words("left out"),
    "index": _plain,
    "server": _plain,
    "changes": lambda changes: ", ".join(map(_short, changes)),
    "tools": lambda names: ", ".join(map(_short, names)),
    "not_run": _with_words("not run"),
    "unknown": _with_words("unknown"),
    "tokens_before": _with_words("tokens before"),
    "tokens_after": _with_words("tokens after"),
    "progress": lambda value: f"{value:g}",
    "total": lambda value: f"of {value:g}",
    "attempts": _with_count("attempt"),
    "duration": format_seconds,
    "arguments_size": _with_count("byte"),
    "result_size": _with_count("byte"),
    "size": _with_count("byte"),
    "explanation": _with_quotes("feedback"),
    "intent": _with_quotes("reason"),
    "arguments": _with_quotes("arguments"),
    "result": _with_quotes("result"),
    "text": _with_quotes("text"),
    "message": _with_quotes("message"),
}
"""How each field is printed, in the order of the line. Fields with content are present only if it is captured."""


def _short(text: str) -> str:
    return _cut(_escape(text[: _LONGEST + 1]), _LONGEST)


def _escape(text: str) -> str:
    """Return a text with its unseen characters escaped as in Python."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if is_seen(character) else character.encode("unicode_escape").decode() for character in text
    )


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
