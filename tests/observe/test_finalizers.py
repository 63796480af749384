"""The garbage collector may end a stream at any point, even while the SDK holds a lock."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from opentelemetry import trace

from tests.captured import Telemetry, total
from tests.waiting import patiently
from traced_tools import Advisor, ChatClient, ObserverAdvisor
from traced_tools.events import EventExporter
from traced_tools.flow import deferred as _finalizing
from traced_tools.flow import perform
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.observe import Event, RunFinished, names, providers
from traced_tools.testing import ScriptedChatModel


def abandon(telemetry: Telemetry, *advisors: Advisor) -> None:
    """Leave a stream behind that only the garbage collector finds."""
    model = ScriptedChatModel(["one two three"])
    stream = ChatClient(model, advisors=advisors, telemetry=telemetry.options).prompt("?").stream()
    next(stream)
    cycle: list[Any] = [stream]
    cycle.append(cycle)


@pytest.fixture
def telemetry() -> Iterable[Telemetry]:
    gc.disable()
    yield Telemetry()
    gc.enable()


def counts(telemetry: Telemetry) -> list[str | None]:
    return [point.attributes.get(names.ERROR_TYPE) for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)]


def test_the_span_of_a_garbage_collected_run_ends_immediately_and_its_metrics_follow(telemetry: Telemetry) -> None:
    abandon(telemetry)
    gc.collect()
    (span,) = telemetry.named("invoke_agent assistant")
    assert (span.attributes or {})[names.ERROR_TYPE] == names.CANCELLED
    assert counts(telemetry) == [names.CANCELLED]
    assert [total(point) for point in telemetry.metric(names.RUN_ACTIVE.name)] == [0]


def test_a_collection_of_metrics_calls_no_event_listener(telemetry: Telemetry) -> None:
    """One that asks for metrics itself would wait for the lock of the collection."""
    abandon(telemetry, watching := Watching())
    gc.collect()
    assert counts(telemetry) == [names.CANCELLED]
    assert not any(isinstance(event, RunFinished) for event in watching.events)
    ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?").call()
    assert isinstance(watching.events[-1], RunFinished)


class Watching(Advisor):
    """Records events."""

    name, order = "watching", 400

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


class Kept(EventExporter):
    """Records events, and signals when a run has finished."""

    name, interval = "kept", 0.0

    def __init__(self) -> None:
        self.finished = threading.Event()

    def export(self, events: Any) -> None:
        if any(isinstance(event, RunFinished) for event in events):
            self.finished.set()


def test_an_exporter_of_events_has_the_end_of_the_run_without_another_run_or_a_flush(telemetry: Telemetry) -> None:
    exporter = Kept()
    with ObserverAdvisor(exporters=[exporter]) as observer:
        abandon(telemetry, observer)
        gc.collect()
        assert exporter.finished.wait(5.0)


class Concluding(ToolCallingAdvisor):
    """Opens a span in `finalize`, which is a hook that waits."""

    async def finalize(self, response: Any) -> Any:
        with trace.get_tracer("none").start_as_current_span("of no provider"):
            return response


def coroutines_of(stream: Any) -> list[Any]:
    """The coroutines that are suspended in one another, from the run to its step."""
    found, coroutine = [], stream._stream._execution._flow
    while hasattr(coroutine, "cr_await"):
        found.append(coroutine)
        coroutine = coroutine.cr_await
    return found


def tree(telemetry: Telemetry) -> list[tuple[str, str | None, Any]]:
    by_id = {span.context.span_id: span.name for span in telemetry.spans}
    return sorted(
        (span.name, span.parent and by_id[span.parent.span_id], (span.attributes or {}).get(names.ERROR_TYPE))
        for span in telemetry.spans
    )


def read_one(spec: Any) -> Any:
    stream = spec.stream()
    next(stream)
    return stream


def aread_one(spec: Any) -> Any:
    async def main() -> Any:
        stream = spec.astream()
        await anext(stream)
        return stream

    return asyncio.run(patiently(main()))


@pytest.mark.parametrize("read", [read_one, aread_one], ids=["stream", "astream"])
@pytest.mark.parametrize("loop", [ToolCallingAdvisor, Concluding])
def test_whichever_coroutine_the_collector_closes_first_the_spans_are_those_of_a_closed_stream(
    read: Callable[[Any], Any], loop: type[ToolCallingAdvisor]
) -> None:
    def left(place: int | None) -> tuple[Any, list[Event], int]:
        telemetry, watching = Telemetry(), Watching()
        model = ScriptedChatModel(["one two three"])
        client = ChatClient(model, advisors=[watching], tool_calling_advisor=loop(), telemetry=telemetry.options)
        stream = read(client.prompt("?"))
        coroutines = coroutines_of(stream)
        if place is not None:  # the collector closes in the context in which it happens to run
            contextvars.Context().run(coroutines[place].close)
        stream._stream._execution.discard()
        assert not trace.get_current_span().get_span_context().is_valid
        return tree(telemetry), watching.events, len(coroutines)

    closed, expected, depth = left(None)
    assert depth > 5
    assert ("finalize tool_calling", "advise tool_calling", None) in closed
    assert {kind for name, _, kind in closed if name.startswith(("invoke", "advise", "iter", "chat"))} == {"cancelled"}
    for place in range(depth):
        spans, events, _ = left(place)
        assert spans == closed
        assert [event.type for event in events] == [event.type for event in expected]
        started = {event.type: event.span_id for event in events if event.type.endswith("started")}
        for event in events:
            if event.type.endswith("finished"):
                assert event.span_id == started[event.type.replace("finished", "started")]


class CleaningUp(Advisor):
    """Waits when it is left."""

    def __init__(self, order: int) -> None:
        self.name = f"cleaning_{order}"
        self.order = order

    async def advise(self, request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        finally:
            await perform(int)


def test_garbage_collection_during_an_advisors_cleanup_causes_no_coroutine_warning(
    telemetry: Telemetry,
) -> None:
    errors: list[RuntimeError] = []

    class Closing:
        def __init__(self, coroutine: Any) -> None:
            self.coroutine, self.itself = coroutine, self

        def __del__(self) -> None:
            try:
                self.coroutine.close()
            except RuntimeError as error:  # "coroutine ignored GeneratorExit"
                errors.append(error)

    advisors, depth = [CleaningUp(100), CleaningUp(400)], 1
    client = ChatClient(ScriptedChatModel(["one two"] * 20), advisors=advisors, telemetry=telemetry.options)
    for place in range(20):
        stream = read_one(client.prompt("?"))
        coroutines = coroutines_of(stream)
        depth = len(coroutines)
        Closing(coroutines[place % depth])
        gc.collect()
        del stream, coroutines
    assert 5 < depth < 20
    assert errors == []
    assert len(telemetry.named("invoke_agent assistant")) == 20


class Locked:
    """An instrument with a lock, like the SDK's, that raises instead of deadlocking."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recorded = 0

    def record(self, *arguments: Any) -> None:
        if not self.lock.acquire(blocking=False):
            raise RuntimeError("this thread would wait for itself")
        self.recorded += 1
        self.lock.release()


def test_garbage_collection_never_deadlocks_on_a_held_lock(telemetry: Telemetry) -> None:
    ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?").call()
    instruments, locked = providers.instruments_of(telemetry.meter_provider), Locked()
    assert instruments is not None
    instruments.invoke_agent_duration = locked  # type: ignore[assignment]
    abandon(telemetry)
    with locked.lock:
        gc.collect()
    assert len(telemetry.named("invoke_agent assistant")) == 2
    ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?").call()
    assert locked.recorded == 2
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []


def test_a_collection_whose_end_is_missed_counts_as_ended_with_the_next_one() -> None:
    """A callback that is interrupted, such as by Ctrl-C, is not called again for the same collection."""
    _finalizing._follow_collector("start", {})
    assert _finalizing.is_in_finalizer()
    gc.collect()
    assert not _finalizing.is_in_finalizer()


def test_a_coroutine_that_the_collector_closes_itself_takes_no_lock(telemetry: Telemetry) -> None:
    ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?").call()
    instruments, locked = providers.instruments_of(telemetry.meter_provider), Locked()
    assert instruments is not None
    instruments.invoke_agent_duration = locked  # type: ignore[assignment]
    stream = read_one(ChatClient(ScriptedChatModel(["one two"]), telemetry=telemetry.options).prompt("?"))

    class Closing:
        def __del__(self) -> None:
            coroutine.close()

    coroutine, cycle = coroutines_of(stream)[0], [Closing()]
    cycle.append(cycle)  # type: ignore[arg-type]
    del cycle
    with locked.lock:
        gc.collect()
    assert locked.recorded == 0
    assert counts(telemetry) == [None]
    assert locked.recorded == 1
