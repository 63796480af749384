"""The no-op object that replaces observations, scopes and event emitters if nothing listens."""

from __future__ import annotations

from typing import Any, Self


class NullScope:
    """No-op observation, scope and emitter, used when nothing listens."""

    __slots__ = ()
    trace_id = traceparent = deltas = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def ignore(self, *_: object, **__: object) -> None:
        """Do nothing."""

    @property
    def timer(self) -> Self:
        """The no-op object itself."""
        return self

    chunk = streaming = delivered = held_back = ignore
    answered = failed = sent_again = requested = began = ended = close = calls = identified = ignore
    repaired = cut_off = stated = approved = provided = advised = started = progressed = stopped = waited = ignore
    retrying = late = ignore
    finished = invalid = decided = fails_run = captured_traceback = ignore
    found = ignore
    looks_up = read = stored = conflict = compacted = unchanged = superseded = ignore


OFF: Any = NullScope()
