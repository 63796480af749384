"""Development mode: contents in the tree of each trace, tracebacks of tools, and a line for each event, on stderr.

Contents reach this module beside the spans, so that no span carries any, whoever exports it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from shutil import get_terminal_size
from typing import Any, Final

from opentelemetry.trace import SpanContext

from traced_tools.core.readable import readable_text
from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes
from traced_tools.observe.span_tree import SpanNode, render_text, tree_rows
from traced_tools.observe.typed_events.lines import format_event
from traced_tools.observe.typed_events.types import Event
from traced_tools.observe.viewer import current_viewer, set_viewer
from traced_tools.otel.console import ConsoleProcessor, write_to_stderr

_NOTICE: Final = (
    "*** DEVELOPMENT MODE: prompts, arguments, results and tracebacks are shown in this terminal. ***\n"
    "*** Nothing is exported but metrics. Drop dev=True or TRACED_TOOLS_DEV before you deploy. ***\n"
)
_MOST_SPANS: Final = 1_000
"""Spans whose contents wait for the end of their trace. Above it, the oldest contents are dropped."""
_LAST_MESSAGES: Final = 3
"""Messages that a tree shows of a conversation: the last ones."""
_UNSHOWN: Final = (names.TOOL_DEFINITIONS, names.TOOL_DESCRIPTION, names.CONTENT_TRUNCATED)


class DevelopmentTerminal(ConsoleProcessor):
    """Prints each event when it happens, and each finished trace as a tree with its contents."""

    def __init__(self) -> None:
        super().__init__()
        self._contents: dict[tuple[int, int], Attributes] = {}

    def start(self) -> None:
        """Say that contents are shown, and receive them from now on."""
        write_to_stderr(_NOTICE)
        set_viewer(self)

    def shutdown(self) -> None:
        """Print what is buffered, and end development mode."""
        super().shutdown()
        if current_viewer() is self:
            set_viewer(None)

    def receive(self, event: Event) -> None:
        """Print an event, which has no contents."""
        with suppress(Exception):  # stderr may be closed
            write_to_stderr(f"{_cut(format_event(event), _width())}\n")

    def keep(self, span: SpanContext, contents: Attributes) -> None:
        """Keep the contents of a span until its trace is printed."""
        with suppress(KeyError, StopIteration, RuntimeError):  # another thread drops the oldest at the same time
            while len(self._contents) >= _MOST_SPANS:
                del self._contents[next(iter(self._contents))]
        if contents:
            self._contents[span.trace_id, span.span_id] = contents

    def render(self, tree: SpanNode) -> str:
        """Return a trace with the contents below the line of each span, each cut to the width of the terminal."""
        width = _width()
        lines = render_text(tree).splitlines()
        rows = list(tree_rows(tree))
        text = []
        for line, (name, node) in zip(lines, rows, strict=False):
            text.append(_cut(line, width))
            branch = name[: len(name) - len(node.name)].replace("├─", "│ ").replace("└─", "  ")
            below = branch + ("│  " if node.children else "   ")
            text += [_cut(f"{below}{line}", width) for line in _content_lines(self._contents.pop(node.key, {}))]
        return "\n".join([*text, *(_cut(line, width) for line in lines[len(rows) :])])


def _width() -> int:
    return max(40, get_terminal_size().columns)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _content_lines(contents: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the contents of a span; unseen characters are escaped."""
    for name, value in contents.items():
        if name in _UNSHOWN:
            continue
        if name == names.EXCEPTION_STACKTRACE:
            yield from map(_readable, str(value).rstrip().splitlines())
        elif name in (names.INPUT_MESSAGES, names.OUTPUT_MESSAGES) and isinstance(value, Sequence):
            yield from (f"{_message(message)}" for message in value[-_LAST_MESSAGES:])
        else:
            yield f"{name.rpartition('.')[2]}: {_readable(value)}"


def _message(message: Any) -> str:
    """Return a message of the GenAI conventions on one line."""
    if not isinstance(message, Mapping):
        return _readable(message)
    return f"{_readable(message.get('role', '?'))}: {'  '.join(map(_part, message.get('parts', ())))}"


def _part(part: Any) -> str:
    match part:
        case {"content": str(text)}:
            return _readable(text)
        case {"type": "tool_call", "name": name, **rest}:
            return f"{_readable(name)}({_readable(rest.get('arguments', ''))})"
    for field in ("response", "result"):
        if isinstance(part, Mapping) and field in part:
            return f"-> {_readable(part[field])}"
    return _readable(part)


def _readable(value: Any) -> str:
    return readable_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), 1_000)
