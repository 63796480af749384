"""Log-based events of calls and runs, which are built only if the logger is enabled."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from tests.captured import Telemetry, hex_ids, total
from tests.modes import ASYNC_MODES, MODES, run
from tests.observe.runs import USAGE, Guard, adds
from tests.sample_tools import add, fail
from traced_tools import ChatClient, LoopLimits, TelemetryOptions, ToolCall, tool
from traced_tools.observe import names
from traced_tools.observe.logger import SEVERITIES
from traced_tools.observe.scopes.model_call import ChatScope
from traced_tools.observe.scopes.run import AgentScope
from traced_tools.observe.scopes.tool_call import ToolScope
from traced_tools.otel.memory import FinishedEvent
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools

INTENT, DECISION, OUTCOME = (
    each.name for each in (names.TOOL_INTENT_EVENT, names.TOOL_DECISION_EVENT, names.TOOL_OUTCOME_EVENT)
)
STOP, TOOL_EXCEPTION, OPERATION_EXCEPTION = (
    each.name for each in (names.LOOP_STOP_EVENT, names.TOOL_EXCEPTION_EVENT, names.INFERENCE_EXCEPTION_EVENT)
)


@tool(requires_approval=True)
def launch() -> str:
    """Launch."""
    return "gone"


def client_of(telemetry: Telemetry, *turns: Any, **settings: Any) -> ChatClient:
    tools = {"tools": [add, fail, launch], **settings}
    return ChatClient(ScriptedChatModel(list(turns), usage=USAGE), name="travel", telemetry=telemetry.options, **tools)


def of_call(telemetry: Telemetry, call_id: str) -> list[FinishedEvent]:
    return [each for each in telemetry.events if each.attributes.get(names.TOOL_CALL_ID) == call_id]


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_runs_has_intent_decision_and_outcome_events_in_order(mode: str) -> None:
    telemetry = Telemetry()
    response = run(mode, client_of(telemetry, adds(1, 2), "three").prompt("?", conversation_id="c-1"))
    (result,) = response.tool_results
    events = of_call(telemetry, result.call_id)
    assert [each.name for each in events] == [INTENT, DECISION, OUTCOME]
    common = {
        names.RUN_ID: response.run_id,
        names.AGENT_NAME: "travel",
        names.CONVERSATION_ID: "c-1",
        names.ITERATION_INDEX: 1,
        names.TOOL_NAME: "add",
        names.TOOL_TYPE: "function",
        names.TOOL_CALL_ID: result.call_id,
        names.TOOL_SOURCE: "local",
    }
    own: list[dict[str, Any]] = [
        {names.TOOL_BATCH_INDEX: 0, names.TOOL_BATCH_SIZE: 1, names.TOOL_ARGUMENTS_SIZE: 16},
        {names.TOOL_DECISION: "allowed"},
        {names.TOOL_OUTCOME: "ok", names.TOOL_ATTEMPTS: 1, names.TOOL_RESULT_SIZE: 1},
    ]
    assert [dict(each.attributes) for each in events] == [{**common, **each} for each in own]
    assert {(each.trace_id, each.span_id) for each in events} == {hex_ids(telemetry.one("execute_tool add"))}


@pytest.mark.parametrize("mode", MODES)
def test_an_allowed_decision_is_emitted_before_the_tool_starts(mode: str) -> None:
    telemetry = Telemetry()
    seen: list[str] = []

    def look() -> str:
        """Look at what has been said so far."""
        seen.extend(each.name for each in telemetry.events)
        return "x"

    run(mode, client_of(telemetry, ToolCall("look"), "done", tools=[look]).prompt("?"))
    assert seen == [INTENT, DECISION]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("call", "decision", "advisor", "error"),
    [
        (ToolCall("invented", {}, id="1"), "unknown_tool", None, "unknown_tool"),
        (ToolCall("add", {"a": "x"}, id="1"), "invalid_arguments", None, "invalid_arguments"),
        (ToolCall("fail", {}, id="1"), "denied", "guard", None),
        (ToolCall("launch", {}, id="1"), "pending", None, None),
        (ToolCall("add", {"a": 1, "b": 2}, id="1"), "limited", None, None),
    ],
)
def test_a_call_that_is_refused_has_a_decision_and_no_outcome(
    mode: str, call: ToolCall, decision: str, advisor: str | None, error: str | None
) -> None:
    telemetry = Telemetry()
    limits = LoopLimits(max_tokens=5) if decision == "limited" else LoopLimits()
    run(mode, client_of(telemetry, call, "done", advisors=[Guard()], limits=limits).prompt("?"))
    intent, decided = of_call(telemetry, "1")
    assert (intent.name, decided.name) == (INTENT, DECISION)
    assert decided.attributes[names.TOOL_DECISION] == decision
    assert decided.attributes.get(names.ADVISOR_NAME) == advisor
    assert decided.attributes.get(names.ERROR_TYPE) == error
    assert decided.span_id == hex_ids(telemetry.named(f"refuse_tool {decided.attributes[names.TOOL_NAME]}")[0])[1]


def test_an_approved_call_has_the_decision_approved() -> None:
    telemetry = Telemetry()
    driven = client_of(telemetry, ToolCall("launch", {}, id="1"), "done").prompt("?").start()
    while step := driven.next():
        if isinstance(step, ExecuteTools):
            step.approve("1")
        driven.perform(step)
    _, decided, ended = of_call(telemetry, "1")
    assert decided.attributes[names.TOOL_DECISION] == "approved"
    assert ended.attributes[names.TOOL_OUTCOME] == "ok"
    assert (telemetry.one("execute_tool launch").attributes or {})[names.TOOL_DECISION] == "approved"


@pytest.mark.parametrize("mode", MODES)
def test_a_tools_exception_is_an_event_with_its_type_alone(mode: str) -> None:
    telemetry = Telemetry()
    run(mode, client_of(telemetry, ToolCall("fail", {"reason": "secret"}, id="1"), "done").prompt("?"))
    (event,) = telemetry.events_named(TOOL_EXCEPTION)
    assert (event.severity, dict(event.attributes)) == ("WARN", {names.EXCEPTION_TYPE: "RuntimeError"})
    assert event.span_id == hex_ids(telemetry.one("execute_tool fail"))[1]
    outcome = of_call(telemetry, "1")[-1]
    assert outcome.attributes[names.ERROR_TYPE] == "RuntimeError"
    assert telemetry.events_named(OPERATION_EXCEPTION) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_models_exception_is_an_event_with_its_type_alone(mode: str) -> None:
    telemetry = Telemetry()
    with pytest.raises(RuntimeError):
        run(mode, client_of(telemetry, RuntimeError("secret")).prompt("?"))
    (event,) = telemetry.events_named(OPERATION_EXCEPTION)
    assert (event.severity, dict(event.attributes)) == ("WARN", {names.EXCEPTION_TYPE: "RuntimeError"})
    assert event.span_id == hex_ids(telemetry.one("chat scripted"))[1]
    assert telemetry.events_named(STOP)[0].attributes[names.ERROR_TYPE] == "RuntimeError"


@pytest.mark.parametrize("mode", MODES)
def test_the_stop_event_has_the_stop_reason_and_usage(mode: str) -> None:
    telemetry = Telemetry()
    response = run(mode, client_of(telemetry, adds(1, 2), "three", version="2.1").prompt("?"))
    (event,) = telemetry.events_named(STOP)
    assert event.severity == "INFO"
    assert dict(event.attributes) == {
        names.RUN_ID: response.run_id,
        names.AGENT_NAME: "travel",
        names.AGENT_VERSION: "2.1",
        names.REQUEST_MODEL: "scripted",
        names.LOOP_STOP_REASON: "answered",
        names.LOOP_ITERATIONS: 2,
        names.LOOP_TOOL_CALLS: 1,
        names.USAGE_INPUT_TOKENS: 18,
        names.USAGE_OUTPUT_TOKENS: 8,
    }
    assert event.span_id == hex_ids(telemetry.one("invoke_agent travel"))[1]
    assert telemetry.events[-1] == event


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_run_whose_stream_is_closed_early_is_cancelled_without_an_exception_event(mode: str) -> None:
    telemetry = Telemetry()
    spec = client_of(telemetry, "one two three").prompt("?")

    async def leave() -> None:
        async with spec.astream() as stream:
            await anext(stream)

    if mode in ASYNC_MODES:
        import asyncio

        asyncio.run(leave())
    else:
        with spec.stream() as stream:
            next(stream)
    (event,) = telemetry.events
    assert event.attributes[names.LOOP_STOP_REASON] == "cancelled"


@pytest.mark.parametrize("mode", MODES)
def test_events_have_their_span_id_also_if_it_is_not_sampled(mode: str) -> None:
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    run(mode, client_of(telemetry, adds(1, 2), "three").prompt("?"))
    assert {each.name for each in telemetry.events} == {INTENT, DECISION, OUTCOME, STOP}
    assert all(each.trace_id for each in telemetry.events)


class Deaf(SimpleLogRecordProcessor):
    """Wants no event at all."""

    def enabled(self, **asked: Any) -> bool:
        return False


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("processor", [None, Deaf])
def test_events_of_a_disabled_logger_are_not_built(mode: str, processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("an event was built")

    for kind, build in ((AgentScope, "_stop"), (ChatScope, "_details"), (ToolScope, "_intended")):
        monkeypatch.setattr(kind, build, never)
    for build in ("_decided", "_ended", "_identity"):
        monkeypatch.setattr(ToolScope, build, never)
    telemetry, provider = Telemetry(), LoggerProvider(shutdown_on_exit=False)
    if processor is not None:
        provider.add_log_record_processor(processor(InMemoryLogRecordExporter()))
    options = TelemetryOptions(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
        logger_provider=provider,
        capture="SPAN_AND_EVENT",
    )
    client = ChatClient(ScriptedChatModel([adds(1, 2), ToolCall("fail"), "x"]), tools=[add, fail], telemetry=options)
    run(mode, client.prompt("?"))
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []


@pytest.mark.parametrize("mode", MODES)
def test_without_a_logger_nothing_asks_whether_events_are_wanted(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("an event was about to be emitted")

    monkeypatch.setattr("traced_tools.observe.logger.ApiLogger.emit", never)
    telemetry = Telemetry()
    options = TelemetryOptions(tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider)
    client = ChatClient(ScriptedChatModel([adds(1, 2), ToolCall("fail"), "x"]), tools=[add, fail], telemetry=options)
    run(mode, client.prompt("?"))
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []


class Broken(SimpleLogRecordProcessor):
    """Raises instead of taking an event."""

    def on_emit(self, log_record: Any) -> None:
        raise RuntimeError("no")


@pytest.mark.parametrize("mode", MODES)
def test_a_logging_set_up_that_raises_is_counted_and_does_not_disturb_the_run(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.observe.failures._reported", set())
    telemetry, provider = Telemetry(), LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(Broken(InMemoryLogRecordExporter()))
    options = TelemetryOptions(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
        logger_provider=provider,
    )
    client = ChatClient(ScriptedChatModel([adds(1, 2), "x"]), tools=[add], telemetry=options)
    assert run(mode, client.prompt("?")).content == "x"
    assert total(telemetry.metric(names.TELEMETRY_FAILURES.name)[0]) == 4


def test_the_severities_of_the_table_are_those_of_opentelemetry() -> None:
    for event in names.EVENTS.values():
        assert SEVERITIES[event.severity].name == event.severity
