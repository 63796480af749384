"""The dispatch of a run's typed events: events are built, numbered and handed to the listeners.

Tools run in parallel, so several threads may emit events at once. Events are numbered and dispatched one after the
other, each to all listeners. An exception of a listener is counted as lost telemetry. If the listener asks for it, the
exception is raised in the code that emitted the event instead, unless that code is failing already.

The functions that emit events import their types, because few runs have listeners, and pydantic takes long to build
the types.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from opentelemetry import trace

from traced_tools.core.ids import time_ordered_id
from traced_tools.flow.deferred import defer, is_in_finalizer
from traced_tools.observe import names
from traced_tools.observe.content import LazyContent, RunContent, may_capture_name
from traced_tools.observe.genai_messages import conversation_makers
from traced_tools.observe.sanitize import drop_invalid_counts, known_finish_reason, safe_identifier
from traced_tools.observe.scopes.run import report_failed_listener
from traced_tools.observe.viewer import current_viewer

if TYPE_CHECKING:
    from traced_tools.observe.content import Makers
    from traced_tools.observe.run_telemetry import RunTelemetry
    from traced_tools.observe.stages.iteration import IterationObservation
    from traced_tools.observe.stages.model_call import ModelCallObservation
    from traced_tools.observe.stages.run import RunObservation
    from traced_tools.observe.stages.subjects import ConversationInput, ModelChunk, ModelOutput, ObservedTools
    from traced_tools.observe.stages.tool_call import ObservedCall
    from traced_tools.observe.time_ledger import TimeLedger
    from traced_tools.observe.typed_events.types import Delta, Event

E = TypeVar("E", bound="Event")


class EventListener(NamedTuple):
    """A method of an advisor that receives events.

    Attributes:
        name: the advisor's name.
        order: the advisor's order.
        receive: the method.
        errors_end_run: whether an exception of the method ends the run.
    """

    name: str
    order: int
    receive: Callable[..., object]
    errors_end_run: bool = False


class EventListeners(NamedTuple):
    """The callbacks of the advisors that listen to events.

    Attributes:
        inside: called with each event except deltas.
        outside: called with the run's start and end.
        deltas: called with each delta.
        calls: called with each requested call, and the event that announces it.
    """

    inside: Sequence[EventListener] = ()
    outside: Sequence[EventListener] = ()
    deltas: Sequence[EventListener] = ()
    calls: Sequence[EventListener] = ()


NO_LISTENERS: Final = EventListeners()


class RunEventDispatcher:
    """Builds, numbers and dispatches the events of one run.

    Args:
        telemetry: the identity of the run, and its content capture.
        listeners: the callbacks.
        parent_run_id: the run that this run is nested in, if any.

    Attributes:
        listeners: the callbacks.
        has_listeners: whether anything listens to events of the run.
        wanted: whether anything listens to more than the run's start and end.
        wants_deltas: whether anything listens to deltas.
        content: which contents events may carry; None for no content.
    """

    __slots__ = (
        "_deltas",
        "_identity",
        "_lock",
        "_sequence",
        "_telemetry",
        "content",
        "has_listeners",
        "listeners",
        "wanted",
        "wants_deltas",
    )

    def __init__(
        self, telemetry: RunTelemetry, listeners: EventListeners = NO_LISTENERS, parent_run_id: str | None = None
    ) -> None:
        self._telemetry = telemetry
        if (viewer := current_viewer()) is not None:
            listeners = listeners._replace(inside=(*listeners.inside, EventListener("development", 0, viewer.receive)))
        self.listeners = listeners
        self._identity: dict[str, Any] = {
            "run_id": telemetry.run_id,
            "agent": telemetry.agent,
            "conversation_id": telemetry.conversation_id or None,
        }
        if parent_run_id is not None:
            self._identity["parent_run_id"] = parent_run_id
        if telemetry.attributes:
            self._identity["attributes"] = telemetry.attributes
        if telemetry.actors:
            self._identity["actors"] = telemetry.actors
        self._sequence = 0
        self._deltas = 0
        self._lock = threading.RLock()  # a listener may run something that emits events in turn
        self.has_listeners = any(listeners)
        self.wanted = bool(listeners.inside)
        self.wants_deltas = bool(listeners.deltas)
        content = telemetry.content
        self.content: RunContent | None = content if content is not None and content.capture.on_events else None

    def deltas(self, iteration: int, tools: ObservedTools, chunk: ModelChunk) -> None:
        """Emit the deltas of a chunk, whose calls have ids.

        Args:
            iteration: the pass of the loop.
            tools: what the model was offered.
            chunk: what arrived.
        """
        from traced_tools.observe.typed_events.types import TextDelta, ToolArgumentsDelta

        if (text := chunk.visible_text) or chunk.restarts:
            fields: dict[str, Any] = {"text": text}
            if chunk.restarts:
                fields["restarts"] = True
            self._dispatch_delta(TextDelta, iteration, text, None, fields)
        for call in chunk.calls():
            fields = {
                "call_id": safe_identifier(call.id or ""),
                "tool_name": call.name,
                "arguments": call.arguments,
                "names_tool": may_capture_name(call.name, tools),
            }
            self._dispatch_delta(ToolArgumentsDelta, iteration, call.arguments, call.name, fields)

    def _dispatch_delta(
        self, kind: type[Delta], iteration: int, piece: str, tool: str | None, fields: dict[str, Any]
    ) -> None:
        fields["size"] = size = len(piece.encode(errors="replace"))
        fields["may_export"] = self.content is not None and self.content.may_capture_delta(size, tool)
        with self._lock:
            fields |= {**self._event(iteration), "sequence": self._sequence, "delta_index": self._deltas}
            if (event := self._make_event(kind, fields)) is not None:
                self._deltas += 1
                self._hand(event, self.listeners.deltas, failing=False)

    def dispatch(
        self,
        kind: type[E],
        iteration: int,
        fields: dict[str, Any],
        *,
        failing: bool = False,
        span: dict[str, str] | None = None,
        call: ObservedCall | None = None,
        ledger: TimeLedger | None = None,
    ) -> None:
        """Build an event and hand it to the listeners.

        Args:
            kind: which event.
            iteration: the pass of the loop, 0 outside it.
            fields: what is particular about it; the rest is added to the dictionary.
            failing: whether an error is on its way already. What a listener raises is then counted and not raised.
            span: the ids of the span it belongs to; None for the current one.
            call: the call that the event announces, for the listeners that are handed calls.
            ledger: where the time of the listeners is booked; None for the ledger of the run.
        """
        ledger = self._telemetry.ledger if ledger is None else ledger
        if is_in_finalizer():  # this thread may hold a listener's locks
            fields |= self._event(iteration, span)
            defer(partial(self._hand_over, kind, fields, call, ledger, failing=True))
            return
        with self._lock:
            fields |= self._event(iteration, span)
            self._hand_over(kind, fields, call, ledger, failing=failing)

    def _hand_over(
        self, kind: type[E], fields: dict[str, Any], call: ObservedCall | None, ledger: TimeLedger, *, failing: bool
    ) -> None:
        from traced_tools.observe.typed_events.types import RunFinished, RunStarted

        outside_listeners = self.listeners.outside if issubclass(kind, RunStarted | RunFinished) else ()
        calls = (
            []
            if call is None
            else [listener._replace(receive=partial(listener.receive, call)) for listener in self.listeners.calls]
        )
        with self._lock:
            fields["sequence"] = self._sequence + 1
            event = self._make_event(kind, fields)
            if event is None:
                return
            self._sequence += 1
            began = perf_counter_ns()
            try:
                self._hand(event, (*outside_listeners, *self.listeners.inside, *calls), failing)
            finally:
                ledger.book_downstream("hook", perf_counter_ns() - began)

    def _make_event(self, kind: type[E], fields: dict[str, Any]) -> E | None:
        """Return an event; None, which is counted, if a value of an application's object fits no event."""
        try:
            return kind(**fields)
        except Exception as error:
            self._telemetry.telemetry_failed(error, "making an event")
            return None

    def _hand(self, event: Event, listeners: Sequence[EventListener], failing: bool) -> None:
        """Call all listeners, then raise the first error that ends the run, unless the run is `failing` already."""
        telemetry, first = self._telemetry, None
        for name, order, receive, errors_end_run in listeners:
            began = perf_counter_ns()
            try:
                receive(event)
            except Exception as error:
                report_failed_listener(telemetry, "on_event", name, order, event.iteration, error, began)
                if failing or first is not None or not errors_end_run:
                    telemetry.telemetry_failed(error, "on_event of an advisor")
                else:
                    first = error
            else:
                telemetry.listened("on_event", name, perf_counter_ns() - began)
        if first is not None:
            raise first

    def _event(self, iteration: int, span: dict[str, str] | None = None) -> dict[str, Any]:
        ids = current_span() if span is None else span
        if self._telemetry.principal is not None and "principal" not in self._identity:
            # with the first event, since a run without events needs no pseudonym
            self._identity["principal"] = self._telemetry.recorded_principal(self.content)
        return {**self._identity, **ids, "id": time_ordered_id(), "time": datetime.now(UTC), "iteration": iteration}

    def captured_texts(self, makers: Makers, *keys: str) -> list[str | None]:
        """Return the texts of the contents with `keys`, None for each that may not be captured."""
        if self.content is None:
            return [None] * len(keys)
        contents = LazyContent(self.content, makers)
        return [contents.text(name) for name in keys]

    def captured_exchange(self, conversation: ConversationInput, answer: ModelOutput | None, name: str) -> str | None:
        """Return the messages that were sent or received as text; None if they may not be captured."""
        if self.content is None:
            return None
        return self.captured_texts(conversation_makers(conversation, answer, self.content), name)[0]


def current_span() -> dict[str, str]:
    """Return the ids of the current span as events hold them. A stage's last event has the ids of its first one.

    When the garbage collector closes a coroutine, another span is current than the coroutine's own.
    """
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(span.trace_id), "span_id": trace.format_span_id(span.span_id)}


class RunEventEmitter:
    """Emits the events of a run's start and end."""

    __slots__ = ("_events", "_observed", "_span")

    def __init__(self, events: RunEventDispatcher, observed: RunObservation) -> None:
        self._events = events
        self._observed = observed

    def began(self) -> None:
        """Emit the start."""
        from traced_tools.observe.typed_events.types import RunStarted

        self._span = current_span()
        conversation, model = self._observed.asked, self._observed.model
        messages = self._events.captured_exchange(conversation, None, names.INPUT_MESSAGES)
        fields = {"model": model.model, "provider": model.provider, "input_messages": messages}
        self._events.dispatch(RunStarted, 0, fields, span=self._span)

    def ended(self) -> None:
        """Emit the end: why the run ended, and its answer."""
        from traced_tools.observe.typed_events.types import RunFinished

        observed, totals = self._observed, self._observed.totals
        answer = observed.answer_to_capture
        fields = {
            "stop_reason": observed.stop_reason,
            "error_type": observed.error_type,
            "iterations": totals.iterations,
            "tool_calls": totals.tool_calls,
            "usage": drop_invalid_counts(totals.usage.total),
            "duration": observed.duration,
            "output_messages": self._events.captured_exchange(observed.asked, answer, names.OUTPUT_MESSAGES),
        }
        self._events.dispatch(RunFinished, 0, fields, failing=observed.error_type is not None, span=self._span)


class IterationEventEmitter:
    """Emits the events of the start and the end of an iteration."""

    __slots__ = ("_events", "_observed", "_span")

    def __init__(self, events: RunEventDispatcher, observed: IterationObservation) -> None:
        self._events = events
        self._observed = observed

    def began(self) -> None:
        """Emit the start."""
        from traced_tools.observe.typed_events.types import IterationStarted

        self._span = current_span()
        self._events.dispatch(IterationStarted, self._observed.index, {}, span=self._span)

    def ended(self) -> None:
        """Emit the end."""
        from traced_tools.observe.typed_events.types import IterationFinished

        observed = self._observed
        fields = {
            "outcome": observed.outcome,
            "error_type": observed.error_type,
            "tool_calls": observed.tool_calls,
            "duration": observed.duration,
        }
        failing = observed.error_type is not None
        self._events.dispatch(IterationFinished, observed.index, fields, failing=failing, span=self._span)


class ModelEventEmitter:
    """Emits the event of a model's answer."""

    __slots__ = ("_events", "_ledger", "_observed")

    def __init__(
        self, events: RunEventDispatcher, observed: ModelCallObservation, ledger: TimeLedger | None = None
    ) -> None:
        self._events = events
        self._observed = observed
        self._ledger = ledger

    def began(self) -> None:
        """Emit nothing: the iteration's event precedes the model call."""

    def answered(self) -> None:
        """Emit the answer."""
        from traced_tools.observe.typed_events.types import ModelResponded

        observed, answer = self._observed, self._observed.answer
        assert answer is not None
        fields = {
            "provider": observed.model.provider,
            "model": safe_identifier(answer.model) if answer.model else None,
            "response_id": safe_identifier(answer.id) if answer.id else None,
            "finish_reason": None if answer.finish_reason is None else known_finish_reason(answer.finish_reason),
            "tool_calls": len(answer.tool_calls),
            "usage": drop_invalid_counts(answer.usage),
            "duration": observed.seconds_so_far(),
            "output_messages": self._events.captured_exchange(observed.asked, answer, names.OUTPUT_MESSAGES),
        }
        self._events.dispatch(ModelResponded, observed.asked.iteration, fields, ledger=self._ledger)

    def ended(self) -> None:
        """Emit nothing: only an answer has an event."""
