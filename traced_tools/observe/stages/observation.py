"""What all observations are: the facts of one stage, its clock, and the sinks that the facts are reported to."""

from __future__ import annotations

from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

from traced_tools.observe.failures import error_type
from traced_tools.observe.off import OFF


class Observation:
    """One stage of a run while it goes on: a `with` block around it.

    A subclass holds the facts of the stage as attributes. The code that runs the stage reports each fact once. The
    sinks read the facts: the scope (spans, metrics, log-based events) and the emitter of typed events. Without a
    listener, `OFF` stands in for a sink; without any, for the observation itself.

    The scope begins before the emitter and ends after it, so that typed events belong to the span. What a listener
    raises ends the stage like any other error.

    Attributes:
        error_type: class of the error that ends the stage; None while it goes on, or if it ends well.
        elapsed: how long the stage took, in nanoseconds, once it has ended.
    """

    __slots__ = ("_began", "_events", "_scope", "elapsed", "error_type")

    _scope: Any
    _events: Any
    error_type: str | None

    def report_to(self, scope: Any, events: Any) -> None:
        """Set the sinks; `OFF` stands in for a sink that nothing listens to."""
        self._scope = scope
        self._events = events

    def __enter__(self) -> Self:
        self.error_type = None
        self._began = perf_counter_ns()
        self._scope.__enter__()
        try:
            self._events.began()
        except BaseException as error:
            self.__exit__(type(error), error, None)  # what was reported to start is reported to end
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.elapsed = perf_counter_ns() - self._began
        if error is not None:
            self._failed(error)
        scope, events = self._scope, self._events
        self._scope = self._events = OFF  # they refer to this object: no cycle is left to the garbage collector
        try:
            events.ended()
        except BaseException as problem:
            self.error_type = error_type(problem)
            scope.close(problem, self.elapsed)
            raise
        scope.close(error, self.elapsed)

    def _failed(self, error: BaseException) -> None:
        """Record the error that ends the stage."""
        self.error_type = error_type(error)

    @property
    def duration(self) -> float:
        """How long the stage took, in seconds, once it has ended."""
        return self.elapsed / 1_000_000_000

    def seconds_so_far(self) -> float:
        """Return how long the stage has taken until now, in seconds."""
        return (perf_counter_ns() - self._began) / 1_000_000_000
