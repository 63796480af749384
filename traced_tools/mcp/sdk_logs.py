"""Keeps the log lines of the MCP SDK out of the application's log.

The SDK logs what it cannot read, which quotes arguments and results. Failures are reported by errors and spans instead.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

OURS: ContextVar[bool] = ContextVar("traced_tools_mcp", default=False)
"""Whether the code that runs belongs to a connection of this package, and not to another user of the SDK."""
_PREFIXES = ("mcp.", "httpx2", "httpcore2", "sse_starlette")
_LATER = ("connection", "http11", "http2", "proxy", "socks")  # modules that the HTTP client imports when it connects
_OTHERS = (
    "client",  # the SDK's sessions
    "opentelemetry.baggage.propagation",  # what peers send as baggage
    *(f"httpcore2.{name}" for name in _LATER),  # what servers send as headers
)


class OurCode:
    """A context manager whose block is code of this package; each block has an object of its own."""

    def __enter__(self) -> None:
        self._outer = OURS.get()
        OURS.set(True)

    def __exit__(self, *_: object) -> None:
        OURS.set(self._outer)


def _is_of_others(record: logging.LogRecord) -> bool:
    return not OURS.get()


def silence_sdk() -> None:
    """Drop the lines that the SDK and its HTTP client log for this package. The SDK must have been imported."""
    loggers = [name for name in logging.root.manager.loggerDict if name.startswith(_PREFIXES)]
    for name in (*loggers, *_OTHERS):
        logging.getLogger(name).addFilter(_is_of_others)  # adding it again changes nothing
