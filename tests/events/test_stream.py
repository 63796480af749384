"""The events of a run arrive in order, numbered and with the ids of their spans, in all four modes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.captured import Telemetry, context_of, total
from tests.events.watching import Watching, check_sequence, raising
from tests.modes import MODES, run
from tests.sample_tools import add
from tests.waiting import PATIENCE, in_time
from traced_tools import ChatClient, ToolCall, Usage
from traced_tools.observe import (
    Event,
    IterationFinished,
    ModelResponded,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolIntended,
    names,
)
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
def test_a_run_emits_events_from_its_start_to_its_end(mode: str) -> None:
    watching = Watching()
    client = ChatClient(two_passes(), name="adder", tools=[add], advisors=[watching])
    response = run(mode, client.prompt("?", conversation_id="talk"))
    assert watching.types == ONE_CALL
    check_sequence(watching.events)
    for event in watching.events:
        assert (event.run_id, event.agent, event.conversation_id) == (response.run_id, "adder", "talk")
        assert event.schema_version == 1
    assert [event.iteration for event in watching.events] == [0, *[1] * 7, *[2] * 3, 0]


@pytest.mark.parametrize("mode", MODES)
def test_events_have_the_facts_of_their_step(mode: str) -> None:
    watching = Watching()
    run(mode, ChatClient(two_passes(), tools=[add], advisors=[watching]).prompt("?"))
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
def test_each_event_has_the_ids_of_its_span(mode: str, detail: str, around: str) -> None:
    watching, telemetry = Watching(), Telemetry(detail=detail)
    model = ScriptedChatModel([[ToolCall("add", {"a": 1, "b": 1}), ToolCall("invented")], "2"])
    response = run(mode, ChatClient(model, tools=[add], advisors=[watching], telemetry=telemetry.options).prompt("?"))
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
def test_without_an_sdk_events_have_no_trace_id(mode: str) -> None:
    watching = Watching()
    run(mode, ChatClient(two_passes(), tools=[add], advisors=[watching]).prompt("?"))
    assert watching.types == ONE_CALL
    assert {(event.trace_id, event.span_id) for event in watching.events} == {(None, None)}


@pytest.mark.parametrize("mode", MODES)
def test_events_of_concurrent_tools_have_no_gap(mode: str) -> None:
    side_by_side = threading.Barrier(8)

    def meet(place: int) -> str:
        """Wait for the others."""
        side_by_side.wait(PATIENCE)
        return str(place)

    watching = Watching()
    calls = [ToolCall("meet", {"place": place}) for place in range(8)]
    run(mode, ChatClient(ScriptedChatModel([calls, "x"]), tools=[meet], advisors=[watching]).prompt("?"))
    check_sequence(watching.events)
    of_call = ["tool_intended", "tool_decided", "tool_started", "tool_finished"]
    for place in range(8):
        events = watching.of_call(f"call_1_{place + 1}")
        assert [each.type for each in events] == of_call
        assert {(each.batch_index, each.batch_size) for each in events} == {(place, 8)}
    kinds = watching.types
    assert max(at for at, kind in enumerate(kinds) if kind == "tool_started") < kinds.index("tool_finished")


@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_events_of_concurrent_async_tools_have_no_gap(mode: str) -> None:
    together = asyncio.Barrier(8)

    async def meet(place: int) -> str:
        """Wait for the others."""
        async with asyncio.timeout(PATIENCE):
            await together.wait()
        return str(place)

    watching = Watching()
    model = ScriptedChatModel([[ToolCall("meet", {"place": place}) for place in range(8)], "x"])
    run(mode, ChatClient(model, tools=[meet], advisors=[watching]).prompt("?"))
    check_sequence(watching.events)
    assert watching.types.count("tool_finished") == 8


def test_concurrent_runs_number_their_events_independently() -> None:
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
def test_a_call_without_a_loop_emits_events_for_one_answer(mode: str) -> None:
    watching = Watching(order=100)
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1})])
    run(mode, ChatClient(model, tools=[add], advisors=[watching]).prompt("?", tool_calling=False))
    assert watching.types == ["run_started", "model_responded", "run_finished"]
    assert {event.iteration for event in watching.events} == {0}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kind", ["run_started", "iteration_started", "model_responded", "iteration_finished", "run_finished"]
)
def test_an_event_listener_error_propagates_after_all_listeners_were_called(mode: str, kind: str) -> None:
    others = Watching(order=350), Watching(order=450), Watching(order=100)
    advisors = [*others, Watching(400, raising(kind))]
    with pytest.raises(KeyError, match=f"mine at {kind}"):
        run(mode, ChatClient(ScriptedChatModel(["x"]), tools=[add], advisors=advisors).prompt("?"))
    inner, further_in, outside = others
    assert inner.events == further_in.events
    check_sequence(inner.events)
    assert inner.types.count("iteration_started") == inner.types.count("iteration_finished")
    assert outside.types == ["run_started", "run_finished"]
    finished = inner.one("run_finished")
    assert isinstance(finished, RunFinished)
    assert finished.error_type == (None if kind == "run_finished" else "KeyError")


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_a_second_event_listener_is_counted(mode: str) -> None:
    telemetry = Telemetry()
    advisors = [Watching(400, raising("model_responded")), Watching(401, raising("model_responded", error=OSError))]
    client = ChatClient(ScriptedChatModel(["x"]), advisors=advisors, telemetry=telemetry.options)
    with pytest.raises(KeyError):
        run(mode, client.prompt("?"))
    (lost,) = telemetry.metric(names.TELEMETRY_FAILURES.name)
    assert total(lost) == 1


@pytest.mark.parametrize("mode", MODES)
def test_an_event_listener_error_masks_no_failure_and_is_counted(mode: str) -> None:
    class Mine(Exception):
        pass

    telemetry = Telemetry()
    watching = Watching(400, raising("iteration_finished", "run_finished"))
    client = ChatClient(ScriptedChatModel([Mine()]), advisors=[watching], telemetry=telemetry.options)
    with pytest.raises(Mine) as raised:
        run(mode, client.prompt("?"))
    assert raised.value.__context__ is None
    (lost,) = telemetry.metric(names.TELEMETRY_FAILURES.name)
    assert total(lost) == 2
    assert watching.types[-2:] == ["iteration_finished", "run_finished"]


def test_an_interrupt_in_an_event_listener_propagates_immediately() -> None:
    watching = Watching(400, raising("run_finished", error=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ChatClient(ScriptedChatModel([RuntimeError()]), advisors=[watching]).prompt("?").call()


@pytest.mark.parametrize("mode", MODES)
def test_an_event_listener_may_start_a_run(mode: str) -> None:
    inner = Watching()
    client = ChatClient(ScriptedChatModel(["x"] * 3), advisors=[inner])

    def ask(event: Event) -> None:
        if event.type == "model_responded":
            client.prompt("?").call()

    outer = Watching(400, ask)
    in_time(lambda: run(mode, ChatClient(ScriptedChatModel(["x"]), advisors=[outer]).prompt("?")))
    check_sequence(outer.events)
    check_sequence(inner.events)


@pytest.mark.parametrize("mode", MODES)
def test_text_that_json_cannot_represent_is_replaced(mode: str) -> None:
    class Odd(ScriptedChatModel):
        provider = "od\ud800d"

    watching = Watching(deltas=True)
    model = Odd(["a \ud800 b"])
    run(mode, ChatClient(model, name="age\ud800nt", advisors=[watching]).prompt("?", conversation_id="c\ud800"))
    started = watching.one("run_started")
    assert isinstance(started, RunStarted)
    assert (started.agent, started.conversation_id, started.provider) == ("age?nt", "c?", "od?d")
    for event in watching.events:
        assert type(event).model_validate_json(event.model_dump_json()) == event


@pytest.mark.parametrize("mode", MODES)
def test_invalid_token_counts_are_in_no_event(mode: str) -> None:
    watching = Watching()
    model = ScriptedChatModel(["x"], usage=Usage(input_tokens=-5, output_tokens=2))
    run(mode, ChatClient(model, advisors=[watching]).prompt("?"))
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
    assert run(mode, client.prompt("?")).content == "x"
    assert watching.types == ["iteration_started", "iteration_finished", "run_finished"]
    check_sequence(watching.events)
    assert sum(total(point) for point in telemetry.metric(names.TELEMETRY_FAILURES.name)) >= 2


def test_without_event_listeners_no_event_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("an event is made and nobody watches")

    monkeypatch.setattr("traced_tools.observe.typed_events.dispatch.RunEventDispatcher._event", refuse)
    monkeypatch.setattr("traced_tools.observe.typed_events.dispatch.RunEventDispatcher.captured_texts", refuse)
    monkeypatch.setattr("traced_tools.observe.stages.tool_call.ToolCallObservation.__init__", refuse)
    run("stream", ChatClient(two_passes(), tools=[add]).prompt("?"))
