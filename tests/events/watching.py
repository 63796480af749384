"""Shared helpers of the tests of events: a listening advisor, tools, and accessors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from traced_tools import Advisor
from traced_tools.observe import Delta, Event, ToolEvent


class Watching(Advisor):
    """Stores the events that it receives, and passes them to a function, whose errors end the run."""

    event_errors_end_run = True

    def __init__(self, order: int = 400, then: Callable[[Event], object] = id, *, deltas: bool = False) -> None:
        self.name, self.order, self.watches_deltas = "watching", order, deltas
        self.events: list[Event] = []
        self._then = then

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self._then(event)

    @property
    def types(self) -> list[str]:
        """The types of the events, in order."""
        return types(self.events)

    @property
    def pieces(self) -> list[Delta]:
        """The deltas."""
        return [event for event in self.events if isinstance(event, Delta)]

    def one(self, kind: str) -> Event:
        """The only event of that type."""
        (event,) = [event for event in self.events if event.type == kind]
        return event

    def of_call(self, call_id: str) -> list[ToolEvent]:
        """The events of a call, in order."""
        return [event for event in self.events if isinstance(event, ToolEvent) and event.call_id == call_id]


def types(events: Iterable[Event]) -> list[str]:
    """The types of events, in order."""
    return [event.type for event in events]


def raising(*kinds: str, error: type[BaseException] = KeyError) -> Callable[[Event], None]:
    """Something that raises for events of some types."""

    def act(event: Event) -> None:
        if event.type in kinds:
            raise error(f"mine at {event.type}")

    return act


def check_sequence(events: Sequence[Event]) -> None:
    """Assert that the events of one run are numbered from 1 without gaps, in the order they came, each with its id."""
    whole = [event for event in events if not isinstance(event, Delta)]
    assert [event.sequence for event in whole] == [*range(1, len(whole) + 1)]
    assert len({event.id for event in events}) == len(events)
    assert len({event.run_id for event in events}) == 1
    times = [event.time for event in whole]
    assert times == sorted(times)
