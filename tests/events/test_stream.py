"""The events of a run come in order, each with its number and the span it belongs to, in all four modes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.events.watching import Watching, add, check_sequence, raising
from tests.helpers import MODES, Telemetry, context_of, run
from tests.support import PATIENCE, in_time
from traced_tools import ChatClient, ToolCall, Usage
from traced_tools.events import (
    Event,
    IterationFinished,
    ModelResponded,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolIntended,
)
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel

ONE_CALL = [
    "run_started",
    "iteration_started",
    "model_responded",
    "tool_intended",
    "tool_decided",
    "tool_started",
    "tool_finished",
    "iteration_finished",
    "iteration_started",
    "model_responded",
    "iteration_finished",
    "run_finished",
]


def two_passes() -> ScriptedChatModel:
    return ScriptedChatModel([ToolCall("add", {"a": 20, "b": 22}), "42"], usage=Usage(input_tokens=8, output_tokens=2))


@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_told_from_its_start_to_its_end(mode: str) -> None:
    watching = Watching()
    client = ChatClient(two_passes(), name="adder", tools=[add], advisors=[watching])
    response = run(client.prompt("?", conversation_id="talk"), mode)
    assert watching.types == ONE_CALL
    check_sequence(watching.events)
    for event in watching.events:
        assert (event.run_id, event.agent, event.conversation_id) == (response.run_id, "adder", "talk")
        assert event.schema_version == 1
    assert [event.iteration for event in watching.events] == [0, *[1] * 7, *[2] * 3, 0]


@pytest.mark.parametrize("mode", MODES)
def test_events_say_what_happened(mode: str) -> None:
    watching = Watching()
    run(ChatClient(two_passes(), tools=[add], advisors=[watching]).prompt("?"), mode)
    by_type: dict[str, Any] = {event.type: event for event in watching.events}
    started, finished = by_type["run_started"], by_type["run_finished"]
    assert isinstance(started, RunStarted) and isinstance(finished, RunFinished)
    assert (started.model, started.provider) == ("scripted", "scripted")
    assert (finished.stop_reason, finished.error_type) == ("answered", None)
    assert (finished.iterations, finished.tool_calls) == (2, 1)
    assert finished.usage == Usage(input_tokens=16, output_tokens=4)
    first, last = [event for event in watching.events if isinstance(event, ModelResponded)]
    assert (first.tool_calls, first.finish_reason, last.tool_calls, last.finish_reason) == (1, "tool_call", 0, "stop")
    assert (first.model, first.provider, first.response_id) == ("scripted", "scripted", "scripted_1")
    assert first.usage == Usage(input_tokens=8, output_tokens=2)
    passes = [event for event in watching.events if isinstance(event, IterationFinished)]
    assert [(each.outcome, each.tool_calls) for each in passes] == [("tool_calls", 1), ("answer", 0)]
    call = watching.of_call("call_1_1")
    assert {(each.tool, each.source, each.batch_index, each.batch_size) for each in call} == {("add", "local", 0, 1)}
    intended, ended = call[0], call[-1]
    assert isinstance(intended, ToolIntended) and isinstance(ended, ToolFinished)
    assert intended.arguments_size == len('{"a": 20, "b": 22}')
    assert (ended.outcome, ended.attempts, ended.result_size) == ("ok", 1, 2)
    for duration in (finished.duration, first.duration, passes[0].duration, ended.duration):
        assert 0 < duration < PATIENCE
    assert finished.duration > passes[0].duration > ended.duration


@pytest.mark.parametrize(("detail", "around"), [("hooks", "iteration"), ("run", "invoke_agent assistant")])
@pytest.mark.parametrize("mode", MODES)
def test_each_event_leads_to_its_span(mode: str, detail: str, around: str) -> None:
    watching, telemetry = Watching(), Telemetry(detail=detail)
    model = ScriptedChatModel([[ToolCall("add", {"a": 1, "b": 1}), ToolCall("invented")], "2"])
    response = run(ChatClient(model, tools=[add], advisors=[watching], telemetry=telemetry.options).prompt("?"), mode)
    spans = {f"{context_of(span).span_id:016x}": span.name for span in telemetry.spans}
    assert {event.trace_id for event in watching.events} == {response.trace_id}
    expected = {
        "run_started": "invoke_agent assistant",
        "iteration_started": around,
        "model_responded": "chat scripted",
        "iteration_finished": around,
        "run_finished": "invoke_agent assistant",
    }
    for event in watching.events:
        name = spans[event.span_id or ""]
        if event in watching.of_call("call_1_2"):
            assert name == "refuse_tool _unknown"
        else:
            assert name == expected.get(event.type, "execute_tool add"), event.type


@pytest.mark.parametrize("mode", MODES)
def test_without_an_sdk_events_come_and_lead_to_no_trace(mode: str) -> None:
    watching = Watching()
    run(ChatClient(two_passes(), tools=[add], advisors=[watching]).prompt("?"), mode)
    assert watching.types == ONE_CALL
    assert {(event.trace_id, event.span_id) for event in watching.events} == {(None, None)}


@pytest.mark.parametrize("mode", MODES)
def test_tools_side_by_side_are_told_without_a_gap(mode: str) -> None:
    side_by_side = threading.Barrier(8)

    def meet(place: int) -> str:
        """Wait for the others."""
        side_by_side.wait(PATIENCE)
        return str(place)

    watching = Watching()
    calls = [ToolCall("meet", {"place": place}) for place in range(8)]
    run(ChatClient(ScriptedChatModel([calls, "x"]), tools=[meet], advisors=[watching]).prompt("?"), mode)
    check_sequence(watching.events)
    of_call = ["tool_intended", "tool_decided", "tool_started", "tool_finished"]
    for place in range(8):
        told = watching.of_call(f"call_1_{place + 1}")
        assert [each.type for each in told] == of_call
        assert {(each.batch_index, each.batch_size) for each in told} == {(place, 8)}
    kinds = watching.types
    assert max(at for at, kind in enumerate(kinds) if kind == "tool_started") < kinds.index("tool_finished")


@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_tools_side_by_side_in_tasks_are_told_without_a_gap(mode: str) -> None:
    together = asyncio.Barrier(8)

    async def meet(place: int) -> str:
        """Wait for the others."""
        async with asyncio.timeout(PATIENCE):
            await together.wait()
        return str(place)

    watching = Watching()
    model = ScriptedChatModel([[ToolCall("meet", {"place": place}) for place in range(8)], "x"])
    run(ChatClient(model, tools=[meet], advisors=[watching]).prompt("?"), mode)
    check_sequence(watching.events)
    assert watching.types.count("tool_finished") == 8


def test_many_runs_at_once_are_each_numbered_by_themselves() -> None:
    watching = Watching()
    call = ToolCall("add", {"a": 1, "b": 1})
    model = ScriptedChatModel([lambda request: "x" if len(request.messages) > 1 else call] * 240)
    client = ChatClient(model, tools=[add], advisors=[watching])

    async def several() -> None:
        await asyncio.gather(*[client.prompt("?").acall() for _ in range(20)])

    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(lambda: asyncio.run(several())) for _ in range(4)]
        done += [pool.submit(lambda: client.prompt("?").call()) for _ in range(40)]
        for each in done:
            each.result(PATIENCE * 4)
    runs: dict[str, list[Event]] = {}
    for event in watching.events:
        runs.setdefault(event.run_id, []).append(event)
    assert len(runs) == 120
    for events in runs.values():
        assert [event.type for event in events] == ONE_CALL
        check_sequence(events)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_without_a_loop_is_told_as_one_answer(mode: str) -> None:
    watching = Watching(order=100)
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1})])
    run(ChatClient(model, tools=[add], advisors=[watching]).prompt("?", tool_calling=False), mode)
    assert watching.types == ["run_started", "model_responded", "run_finished"]
    assert {event.iteration for event in watching.events} == {0}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kind", ["run_started", "iteration_started", "model_responded", "iteration_finished", "run_finished"]
)
def test_what_a_watcher_raises_passes_through_once_all_have_been_told(mode: str, kind: str) -> None:
    others = Watching(order=350), Watching(order=450), Watching(order=100)
    advisors = [*others, Watching(400, raising(kind))]
    with pytest.raises(KeyError, match=f"mine at {kind}"):
        run(ChatClient(ScriptedChatModel(["x"]), tools=[add], advisors=advisors).prompt("?"), mode)
    inner, further_in, outside = others
    assert inner.events == further_in.events
    check_sequence(inner.events)
    assert inner.types.count("iteration_started") == inner.types.count("iteration_finished")
    assert outside.types == ["run_started", "run_finished"]
    finished = inner.one("run_finished")
    assert isinstance(finished, RunFinished)
    assert finished.error_type == (None if kind == "run_finished" else "KeyError")


@pytest.mark.parametrize("mode", MODES)
def test_what_a_second_watcher_raises_is_counted_since_one_error_leaves(mode: str) -> None:
    telemetry = Telemetry()
    advisors = [Watching(400, raising("model_responded")), Watching(401, raising("model_responded", error=OSError))]
    client = ChatClient(ScriptedChatModel(["x"]), advisors=advisors, telemetry=telemetry.options)
    with pytest.raises(KeyError):
        run(client.prompt("?"), mode)
    (lost,) = telemetry.metric(names.TELEMETRY_FAILURES.name)
    assert lost.total == 1


@pytest.mark.parametrize("mode", MODES)
def test_what_a_watcher_raises_masks_no_failure_and_is_counted(mode: str) -> None:
    class Mine(Exception):
        pass

    telemetry = Telemetry()
    watching = Watching(400, raising("iteration_finished", "run_finished"))
    client = ChatClient(ScriptedChatModel([Mine()]), advisors=[watching], telemetry=telemetry.options)
    with pytest.raises(Mine) as raised:
        run(client.prompt("?"), mode)
    assert raised.value.__context__ is None
    (lost,) = telemetry.metric(names.TELEMETRY_FAILURES.name)
    assert lost.total == 2
    assert watching.types[-2:] == ["iteration_finished", "run_finished"]


def test_an_interrupt_of_a_watcher_leaves_at_once() -> None:
    watching = Watching(400, raising("run_finished", error=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ChatClient(ScriptedChatModel([RuntimeError()]), advisors=[watching]).prompt("?").call()


@pytest.mark.parametrize("mode", MODES)
def test_a_watcher_may_run_something_itself(mode: str) -> None:
    inner = Watching()
    client = ChatClient(ScriptedChatModel(["x"] * 3), advisors=[inner])

    def ask(event: Event) -> None:
        if event.type == "model_responded":
            client.prompt("?").call()

    outer = Watching(400, ask)
    in_time(lambda: run(ChatClient(ScriptedChatModel(["x"]), advisors=[outer]).prompt("?"), mode))
    check_sequence(outer.events)
    check_sequence(inner.events)


@pytest.mark.parametrize("mode", MODES)
def test_words_that_no_json_can_hold_are_told_as_what_it_can(mode: str) -> None:
    class Odd(ScriptedChatModel):
        provider = "od\ud800d"

    watching = Watching(deltas=True)
    model = Odd(["a \ud800 b"])
    run(ChatClient(model, name="age\ud800nt", advisors=[watching]).prompt("?", conversation_id="c\ud800"), mode)
    started = watching.one("run_started")
    assert isinstance(started, RunStarted)
    assert (started.agent, started.conversation_id, started.provider) == ("age?nt", "c?", "od?d")
    for event in watching.events:
        assert type(event).model_validate_json(event.model_dump_json()) == event


@pytest.mark.parametrize("mode", MODES)
def test_counts_that_nobody_can_have_counted_are_not_told(mode: str) -> None:
    watching = Watching()
    model = ScriptedChatModel(["x"], usage=Usage(input_tokens=-5, output_tokens=2))
    run(ChatClient(model, advisors=[watching]).prompt("?"), mode)
    responded, finished = watching.one("model_responded"), watching.one("run_finished")
    assert isinstance(responded, ModelResponded) and isinstance(finished, RunFinished)
    assert responded.usage == finished.usage == Usage(output_tokens=2)


@pytest.mark.parametrize("mode", MODES)
def test_an_event_that_cannot_be_made_is_counted_and_the_run_goes_on(mode: str) -> None:
    class Sly(ScriptedChatModel):
        provider = "scripted"

    model, watching, telemetry = Sly(["x"]), Watching(), Telemetry()
    client = ChatClient(model, advisors=[watching], telemetry=telemetry.options)
    Sly.provider = 5  # type: ignore[assignment]
    assert run(client.prompt("?"), mode).content == "x"
    assert watching.types == ["iteration_started", "iteration_finished", "run_finished"]
    check_sequence(watching.events)
    assert sum(point.total for point in telemetry.metric(names.TELEMETRY_FAILURES.name)) >= 2


def test_who_watches_nothing_is_told_of_nothing_and_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("an event is made and nobody watches")

    monkeypatch.setattr("traced_tools.observe.dispatch.RunEventDispatcher._event", refuse)
    monkeypatch.setattr("traced_tools.observe.dispatch.RunEventDispatcher.captured_texts", refuse)
    monkeypatch.setattr("traced_tools.observe.tool_call.ToolCallObservation.__init__", refuse)
    run(ChatClient(two_passes(), tools=[add]).prompt("?"), "stream")
