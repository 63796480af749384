"""An event exporter that prints one readable line per event."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from traced_tools.errors import ConfigurationError
from traced_tools.events.exporter import EventExporter, ExportFailed
from traced_tools.observe.typed_events.lines import format_event
from traced_tools.observe.typed_events.types import Event


class ConsoleEventExporter(EventExporter):
    r"""Prints one line for each event: the time (UTC), the beginning of the run id, and the event with its data.

    Lines are at most 160 characters wide and have no colours. Unprintable characters are escaped as in Python, so that
    no escape sequence from a model or a tool reaches a terminal. If content is captured, a line shows the beginning of
    each content. Messages are never printed.

    Args:
        stream: the text stream to print to; None uses the current `sys.stderr`.

    Raises:
        ConfigurationError: `stream` is not a text stream.
    """

    name = "console"
    interval = 0.0

    def __init__(self, stream: TextIO | None = None) -> None:
        if stream is not None and not callable(getattr(stream, "write", None)):
            raise ConfigurationError(f"stream must be a text stream or None, not {type(stream).__name__}")
        self._stream = stream

    def export(self, events: Sequence[Event]) -> None:
        """Print events; raises `ExportFailed`, which is not retryable because a part may already be printed."""
        problem = None
        try:
            self._print("".join(f"{format_event(event)}\n" for event in events))
        except (OSError, ValueError, AttributeError) as error:  # the stream is full or gone, closed, or None
            problem = f"the console stream cannot be written ({type(error).__name__})"
        if problem is not None:
            raise ExportFailed(problem, retryable=False)

    def _print(self, text: str) -> None:
        stream = sys.stderr if self._stream is None else self._stream
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
