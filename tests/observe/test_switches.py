"""Options that omit spans, and SDKs that record nothing or raise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from tests.captured import Telemetry, series_key, total
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.observe.closed_list import assert_consistent, word_of
from tests.observe.comparable import steady
from tests.observe.embedders import RemoteEmbedder
from tests.observe.runs import Broken, BrokenSampler, Guard, Outside, adds, scenario
from tests.recorder import Recorder
from tests.sample_tools import add, fail
from traced_tools import (
    Advisor,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ConfigurationError,
    TelemetryOptions,
    ToolCall,
    configure,
)
from traced_tools.core.enums import HOOKS
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatRequest, ChatResponse
from traced_tools.observe import names, settings
from traced_tools.observe.scopes.scope import Scope
from traced_tools.observe.settings import DETAIL, OPENINFERENCE
from traced_tools.testing import ScriptedChatModel


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("by_environment", [False, True], ids=["option", "variable"])
@pytest.mark.parametrize("detail", ["run", "steps"])
def test_less_detail_omits_spans_and_keeps_the_metrics(
    mode: str, detail: str, by_environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_environment:
        monkeypatch.setenv(DETAIL, f" {detail.upper()} ")
    telemetry, reference = Telemetry(detail=None if by_environment else detail), Telemetry(detail="hooks")
    scenario(telemetry, mode)
    scenario(reference, mode)
    assert_consistent(telemetry)
    first, second = ["chat scripted", "execute_tool add", "execute_tool fail"], ["chat scripted"]
    ((root, below),) = telemetry.nested_names()
    assert root == "invoke_agent travel"
    if detail == "run":
        assert sorted(below) == sorted(first + second)
    else:
        assert [(name, sorted(steps)) for name, steps in below] == [("iteration", first), ("iteration", second)]
    indexes = [(span.attributes or {})[names.ITERATION_INDEX] for span in telemetry.named("chat scripted")]
    assert indexes == [1, 2]
    assert (telemetry.one("execute_tool add").attributes or {})[names.ITERATION_INDEX] == 1
    assert {series_key(point): point.count for point in steady(telemetry)} == {
        series_key(point): point.count for point in steady(reference)
    }


@pytest.mark.parametrize("mode", MODES)
def test_the_detail_of_a_client_overrides_the_environment(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DETAIL, "run")
    telemetry = Telemetry(detail="hooks")
    scenario(telemetry, mode)
    assert len(telemetry.named("advise tool_calling")) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_call_has_its_span_with_the_least_detail(mode: str) -> None:
    telemetry = Telemetry(detail="run")
    calls = [ToolCall("fail"), ToolCall("invented")]
    client = ChatClient(ScriptedChatModel([calls, "x"]), tools=[fail], advisors=[Guard()], telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    ((_, below),) = telemetry.nested_names()
    assert {"refuse_tool fail", "refuse_tool _unknown"} < set(below)


class Waits(Advisor):
    """Has a span of its own around the model, and takes a second for itself before it asks."""

    name, order = "waits", 400

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        self._clock.now += 1_000_000_000
        with trace.get_tracer(__name__).start_as_current_span("inside"):
            return await call_next(request)


class Clock:
    """A clock that is advanced by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_700_000_000_000_000_000
        monkeypatch.setattr("traced_tools.observe.scopes.scope.time_ns", lambda: self.now)
        for module in ("stages.observation", "scopes.model_call", "scopes.scope"):
            monkeypatch.setattr(f"traced_tools.observe.{module}.perf_counter_ns", lambda: self.now)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("detail", "parent"), [("run", "invoke_agent assistant"), ("steps", "iteration")])
@pytest.mark.parametrize(("slow_hook", "shown"), [(1.0, ["advise waits"]), (1.1, []), (None, [])])
def test_a_hook_that_takes_long_has_its_span_with_every_detail(
    mode: str, detail: str, parent: str, slow_hook: float | None, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, telemetry = Clock(monkeypatch), Telemetry(detail=detail, slow_hook=slow_hook)
    began = clock.now
    client = ChatClient(ScriptedChatModel(["x"]), advisors=[Waits(clock)], telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    assert_consistent(telemetry)
    found = [span for span in telemetry.spans if word_of(span) in HOOKS]
    assert [span.name for span in found] == shown
    assert sorted(names_below(telemetry, parent)) == sorted(["chat scripted", *shown])
    for span in found:
        assert (span.start_time, span.end_time) == (began, began + 1_000_000_000)
        assert (span.attributes or {})[names.ADVISOR_SELF_TIME] == 1.0


def names_below(telemetry: Telemetry, parent: str) -> list[str]:
    return [span.name for span in telemetry.children(telemetry.one(parent)) if span.name != "iteration"]


def test_the_time_of_the_model_makes_no_hook_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    class Thinking(ScriptedChatModel):
        def call(self, request: ChatRequest) -> ChatResponse:
            clock.now += 9_000_000_000
            return super().call(request)

    clock, telemetry = Clock(monkeypatch), Telemetry(detail="run", slow_hook=0.1)
    run("call", ChatClient(Thinking(["x"]), advisors=[Outside()], telemetry=telemetry.options).prompt("?"))
    assert {span.name for span in telemetry.spans} == {"invoke_agent assistant", "chat scripted"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hook", ["advise", "advise_tool"])
def test_a_hook_that_fails_has_its_span_with_the_least_detail_and_no_other_hook_has(mode: str, hook: str) -> None:
    telemetry = Telemetry(detail="run")
    advisors = [Outside(), Broken(hook), Recorder("observer", 350)]
    client = ChatClient(
        ScriptedChatModel([adds(1, 1), "x"]), tools=[add], advisors=advisors, telemetry=telemetry.options
    )
    with pytest.raises(LookupError):
        run(mode, client.prompt("?"))
    assert_consistent(telemetry)
    (failed,) = [span for span in telemetry.spans if word_of(span) in HOOKS]
    assert (failed.name, (failed.attributes or {})[names.ERROR_TYPE]) == (f"{hook} broken", "LookupError")


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_that_is_closed_early_emits_no_hook_spans_without_detail(mode: str) -> None:
    telemetry = Telemetry(detail="run")
    spec = ChatClient(ScriptedChatModel(["one two"]), advisors=[Outside()], telemetry=telemetry.options).prompt("?")

    async def leave() -> None:
        async with spec.astream() as stream:
            await anext(stream)

    if mode == "stream":
        with spec.stream() as stream:
            next(stream)
    else:
        asyncio.run(leave())
    assert [span.name for span in telemetry.spans] == ["invoke_agent assistant", "chat scripted"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("own", "variable", "expected"),
    [(True, "0", True), (None, "TRUE", True), (None, "1", True), (False, "true", False), (None, "", False)],
)
def test_openinference_kinds_are_on_every_span_if_enabled(
    mode: str, own: bool | None, variable: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPENINFERENCE, variable)
    telemetry = Telemetry(openinference=own)
    scenario(telemetry, mode)
    RemoteEmbedder().embed(["one"], telemetry=telemetry.options)
    kinds = {word_of(span): (span.attributes or {}).get(names.OPENINFERENCE_KIND) for span in telemetry.spans}
    wanted = {"invoke_agent": "AGENT", "chat": "LLM", "execute_tool": "TOOL", "embeddings": "EMBEDDING"}
    assert kinds == {word: wanted.get(word, "CHAIN") if expected else None for word in kinds}
    assert set(wanted) < set(kinds)


@pytest.mark.parametrize(("word", "expected"), [("1", True), (" True ", True), ("0", False), ("false", False)])
def test_the_variable_for_openinference_takes_words_and_numbers(
    word: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPENINFERENCE, word)
    assert settings.read_openinference() is expected


@pytest.mark.parametrize("variable", [DETAIL, OPENINFERENCE])
def test_an_invalid_variable_is_logged_once_and_ignored(
    variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "_warned", set())
    monkeypatch.setenv(variable, MARKER)
    telemetry, reference = Telemetry(), Telemetry(detail="hooks", openinference=False)
    for each in (telemetry, telemetry, reference):
        scenario(each, "call")
    assert len(telemetry.spans) == 2 * len(reference.spans)
    warnings = [record.getMessage() for record in caplog.records if record.name == settings.__name__]
    assert [text.split()[0] for text in warnings] == [variable]
    assert MARKER not in caplog.text
    with pytest.raises(ConfigurationError, match=variable):
        configure()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"detail": "some"}, ValueError),
        ({"slow_hook": 0}, ValueError),
        ({"slow_hook": "1"}, TypeError),
        ({"openinference": "yes"}, TypeError),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else each.__name__,
)
def test_an_invalid_telemetry_option_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        TelemetryOptions(**wrong)


@pytest.mark.parametrize("mode", MODES)
def test_for_a_run_that_is_not_sampled_nothing_is_built(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = list(scopes(Scope))
    assert len(kinds) >= 5

    def never(self: Scope) -> Any:
        raise AssertionError("attributes were built for a span that is not recording")

    for kind in kinds:
        if "_final_attributes" in vars(kind):
            monkeypatch.setattr(kind, "_final_attributes", never)
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    scenario(telemetry, mode)
    assert telemetry.spans == ()
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []
    assert [point.count for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)] == [1]


def scopes(kind: type[Scope]) -> Iterator[type[Scope]]:
    for below in kind.__subclasses__():
        yield below
        yield from scopes(below)


@pytest.mark.parametrize("mode", MODES)
def test_without_an_sdk_a_run_is_the_same_and_has_no_trace(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "two"])
    options = TelemetryOptions(trace.NoOpTracerProvider(), metrics.NoOpMeterProvider())
    response = run(mode, ChatClient(model, tools=[add], telemetry=options).prompt("?"))
    assert (response.content, response.trace_id) == ("two", None)


@pytest.mark.parametrize("mode", MODES)
def test_a_tracing_set_up_that_raises_is_counted_and_does_not_disturb_the_run(
    mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.observe.failures._reported", set())
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry(sampler=BrokenSampler())
    assert scenario(telemetry, mode).content == "three it is"
    assert telemetry.spans == ()
    (lost,) = telemetry.metric(names.TELEMETRY_FAILURES.name)
    assert total(lost) > 5
    assert MARKER not in caplog.text
    assert "RuntimeError" in caplog.text
