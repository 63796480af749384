"""The base class of event exporters, and the error that an exporter raises."""

from __future__ import annotations

from collections.abc import Sequence

from traced_tools.errors import TracedToolsError
from traced_tools.observe.typed_events.types import Event


class ExportFailed(TracedToolsError):
    """Events could not be sent.

    Args:
        message: the problem, for the log. It must contain nothing from the events, and no key.
        retryable: whether the same events should be tried again.
        retry_after: seconds that the receiver asks to wait before the next attempt.
    """

    def __init__(self, message: str, *, retryable: bool = True, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after


class EventExporter:
    """Base class of event exporters. Subclass it and implement `export` to send events to your own destination.

    All methods are called in one background thread, one at a time. A forked child continues with the same object in
    another thread: recreate there what two processes cannot share, such as a connection or a lock
    (`os.register_at_fork`).

    Attributes:
        name: the exporter's name. It is a metric label, so set it in code and use few distinct names.
        max_batch: the maximum number of events in a batch.
        interval: seconds that an event may wait for others; 0 sends events immediately.
    """

    name: str
    max_batch: int = 512
    interval: float = 1.0

    def export(self, events: Sequence[Event]) -> None:
        """Send a batch of events; blocks.

        Raises:
            ExportFailed: the events could not be sent. Any other exception counts as a retryable failure.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement export()")

    def on_undeliverable(self, events: Sequence[Event]) -> None:
        """Called with events that cannot be delivered and are lost, for example to write a dead-letter file."""

    def flush(self) -> None:
        """Make the exported events durable, for example on disk."""

    def close(self) -> None:
        """Flush and release resources. No method is called afterwards."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {getattr(self, 'name', None)!r}>"  # without the address, which may contain a key
        )
