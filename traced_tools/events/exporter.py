"""What sends events on, and how one writes one's own."""

from __future__ import annotations

from collections.abc import Sequence

from traced_tools.errors import TracedToolsError
from traced_tools.observe.event_types import Event


class ExportFailed(TracedToolsError):
    """Events could not be sent.

    Args:
        message: what went wrong, for the log: without anything of the events, and without a key.
        retryable: whether the same events are worth another attempt.
        retry_after: seconds the receiver asks to wait before it.
    """

    def __init__(self, message: str, *, retryable: bool = True, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after


class EventExporter:
    """Sends events on, in batches. Its methods are called in a thread of its own, one after the other.

    A forked child goes on with the same object in another thread: what two processes cannot share, such as a connection
    or a lock, is to be made anew there (`os.register_at_fork`).

    Attributes:
        name: set in code and bounded: it is a metric label.
        max_batch: how many events are sent at once.
        interval: seconds an event may wait for others; 0 sends what is there at once.
    """

    name: str
    max_batch: int = 512
    interval: float = 1.0

    def export(self, events: Sequence[Event]) -> None:
        """Send events, blocking.

        Raises:
            ExportFailed: when they could not be sent; other exceptions count as one that is worth another attempt.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to export events")

    def on_undeliverable(self, events: Sequence[Event]) -> None:
        """Take note of events that were tried often enough and are lost; such as in a dead-letter file."""

    def flush(self) -> None:
        """Have everything sent so far where it is to be, such as on the disk."""

    def close(self) -> None:
        """Flush, and let go of what is open; nothing is exported any more."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, 'name', None)!r}>"  # and no address, which may hold a key
