"""The metrics of a run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry.metrics import CallbackOptions
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.captured import Telemetry, series_key, total
from tests.modes import MODES, run
from tests.observe.all_runs import Prices
from tests.observe.embedders import RemoteEmbedder
from tests.observe.runs import USAGE, Broken, Guard, adds, scenario
from tests.sample_tools import add, fail
from traced_tools import AssistantMessage, ChatClient, ImagePart, LoopLimitExceeded, LoopLimits, ToolCall, Usage, tool
from traced_tools.core.enums import CONVENTIONS
from traced_tools.errors import InvalidResponse
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.observe.instruments import Instruments
from traced_tools.observe.meter import ApiMeter, Observe
from traced_tools.observe.names.registry_types import Metric
from traced_tools.observe.settings import EARLIER, GENAI_CONVENTIONS, RELEASED
from traced_tools.otel.prometheus import iter_metrics
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

USED = (
    names.INPUT_TOKENS_USED,
    names.OUTPUT_TOKENS_USED,
    names.CACHE_READ_TOKENS_USED,
    names.CACHE_WRITE_TOKENS_USED,
    names.REASONING_TOKENS_USED,
)


@pytest.mark.parametrize("mode", MODES)
def test_the_metrics_of_the_scenario_are_counted(mode: str) -> None:
    telemetry = Telemetry(prices=Prices())
    response = scenario(telemetry, mode)
    agent = {names.AGENT_NAME: "travel"}
    chat = {
        names.OPERATION_NAME: "chat",
        names.PROVIDER_NAME: "scripted",
        names.REQUEST_MODEL: "scripted",
        names.RESPONSE_MODEL: "scripted",
        names.SERVER_ADDRESS: "models.example.invalid",
        names.SERVER_PORT: 8443,
        **agent,
    }
    found = {series_key(point): (point.count, total(point)) for point in telemetry.metrics}

    def of(metric: Metric, labels: dict[str, Any]) -> tuple[int | None, float]:
        return found[metric.name, tuple(sorted(labels.items()))]

    version = {**agent, names.AGENT_VERSION: "2.1"}
    assert of(names.INVOKE_AGENT_DURATION, {**version, names.REQUEST_MODEL: "scripted"})[0] == 1
    assert of(names.INVOKE_AGENT_INFERENCE_CALLS, agent) == (1, 2)
    assert of(names.INVOKE_AGENT_TOOL_CALLS, agent) == (1, 2)
    assert of(names.LOOP_ITERATIONS_METRIC, {**version, names.LOOP_STOP_REASON: "answered"}) == (1, 2)
    assert of(names.INFERENCE_DURATION, chat)[0] == 2
    counted = {**chat, names.TOKEN_MODALITY: "unknown"}
    used = {"input": 18, "output": 8, "cache_read": 6, "cache_write": 4, "reasoning": 2}
    for metric, tokens in zip(USED, used.values(), strict=True):
        assert of(metric, counted) == (None, tokens)
    assert of(names.INPUT_TOKENS_A_CALL, chat) == (2, 18)
    assert of(names.OUTPUT_TOKENS_A_CALL, chat) == (2, 8)
    assert of(names.ITERATION_DURATION, {**agent, names.ITERATION_OUTCOME: "tool_calls"})[0] == 1
    assert of(names.ITERATION_DURATION, {**agent, names.ITERATION_OUTCOME: "answer"})[0] == 1
    called = {names.TOOL_TYPE: "function", **agent}
    assert of(names.EXECUTE_TOOL_DURATION, {**called, names.TOOL_NAME: "add"})[0] == 1
    assert (
        of(names.EXECUTE_TOOL_DURATION, {**called, names.TOOL_NAME: "fail", names.ERROR_TYPE: "RuntimeError"})[0] == 1
    )
    for name in ("add", "fail"):
        assert of(names.TOOL_DECISIONS, {**version, names.TOOL_NAME: name, names.TOOL_DECISION: "allowed"}) == (None, 1)
    sizes = {name: len(result.content) for name, result in zip(("add", "fail"), response.tool_results, strict=True)}
    for name, size in sizes.items():
        assert of(names.TOOL_RESULT_SIZE_METRIC, {**agent, names.TOOL_NAME: name}) == (1, size)
    assert of(names.LOOP_COST_METRIC, {**version, names.LOOP_STOP_REASON: "answered"}) == (1, 0.5)
    assert of(names.TOOL_ACTIVE, agent)[1] == of(names.RUN_ACTIVE, agent)[1] == 0
    assert of(names.RUN_OLDEST_ACTIVE, agent)[1] == 0
    for advisor, count in (("memory", 1), ("tool_calling", 1), ("observer", 2)):
        hook = {**agent, names.ADVISOR_NAME: advisor, names.ADVISOR_HOOK: "advise"}
        assert of(names.ADVISOR_DURATION, hook)[0] == count


# The names of v1.41.0, for whoever keeps them.


def model_metrics(telemetry: Telemetry) -> set[str]:
    run("call", ChatClient(ScriptedChatModel([USED_ANSWER]), telemetry=telemetry.options).prompt("?"))
    return {point.name for point in telemetry.metrics if point.name.startswith("gen_ai.client.")}


USED_ANSWER = ChatResponse(AssistantMessage("x"), usage=Usage(input_tokens=9, output_tokens=4))


@pytest.mark.parametrize("mode", MODES)
def test_the_environment_keeps_the_earlier_names_of_metrics(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv(GENAI_CONVENTIONS, EARLIER)
    telemetry = Telemetry(prices=Prices())
    scenario(telemetry, mode)
    sums = {point.attributes[names.TOKEN_TYPE]: point.sum for point in telemetry.metric(names.TOKEN_USAGE.name)}
    assert sums == {"input": 18, "output": 8}
    (calls,) = telemetry.metric(names.OPERATION_DURATION.name)
    assert calls.count == 2
    streamed = {names.TIME_TO_FIRST_CHUNK.name, names.TIME_PER_OUTPUT_CHUNK.name} if "stream" in mode else set()
    found = {point.name for point in telemetry.metrics if point.name.startswith("gen_ai.client.")}
    assert found == {names.TOKEN_USAGE.name, names.OPERATION_DURATION.name, *streamed}


def test_an_unknown_name_of_conventions_is_logged_once_and_the_released_names_apply(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(GENAI_CONVENTIONS, "1.37")
    assert names.INFERENCE_DURATION.name in model_metrics(Telemetry())
    assert names.INFERENCE_DURATION.name in model_metrics(Telemetry())
    (record,) = caplog.records
    assert record.getMessage() == (
        "TRACED_TOOLS_GENAI_CONVENTIONS must be one of v0.1.0, v1.41.0; the names are those of v0.1.0"
    )


def test_the_opt_in_of_the_conventions_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = model_metrics(Telemetry())
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http,gen_ai_latest_experimental")
    assert model_metrics(Telemetry()) == found
    assert names.INPUT_TOKENS_USED.name in found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_metric_of_a_run_carries_the_agents_name(
    monkeypatch: pytest.MonkeyPatch, mode: str, convention: str
) -> None:
    monkeypatch.setenv(GENAI_CONVENTIONS, convention)
    telemetry = Telemetry(prices=Prices())
    scenario(telemetry, mode)
    assert {point.name: point.attributes.get(names.AGENT_NAME) for point in telemetry.metrics} == {
        point.name: "travel" for point in telemetry.metrics
    }


def test_without_reported_usage_there_is_no_token_metric(telemetry: Telemetry) -> None:
    run("call", ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?"))
    assert [point.name for point in telemetry.metrics if "tokens" in point.name] == []
    assert names.USAGE_INPUT_TOKENS not in (telemetry.one("invoke_agent assistant").attributes or {})


@pytest.mark.parametrize("mode", MODES)
def test_a_duration_metric_is_the_spans_duration_or_the_time_of_the_model_in_it(
    telemetry: Telemetry, mode: str
) -> None:
    scenario(telemetry, mode)
    pairs = {
        names.INVOKE_AGENT_DURATION.name: "invoke_agent travel",
        names.ITERATION_DURATION.name: "iteration",
    }
    for metric, span in pairs.items():
        spans = sum((each.end_time or 0) - (each.start_time or 0) for each in telemetry.named(span))
        assert sum(total(point) for point in telemetry.metric(metric)) == pytest.approx(spans / 1e9, abs=2e-9)
    models = (telemetry.one("invoke_agent travel").attributes or {})[names.TIME_BY_KIND["model"]]
    assert sum(total(point) for point in telemetry.metric(names.INFERENCE_DURATION.name)) == pytest.approx(models)
    for point in telemetry.metric(names.EXECUTE_TOOL_DURATION.name):
        each = telemetry.one(f"execute_tool {point.attributes[names.TOOL_NAME]}")
        assert total(point) == pytest.approx(((each.end_time or 0) - (each.start_time or 0)) / 1e9, abs=2e-9)
    for point in telemetry.metric(names.ADVISOR_DURATION.name):
        advisor, hook = point.attributes[names.ADVISOR_NAME], point.attributes[names.ADVISOR_HOOK]
        if hook == "advise":
            own = sum(
                float((s.attributes or {})[names.ADVISOR_SELF_TIME]) for s in telemetry.named(f"advise {advisor}")
            )  # type: ignore[arg-type]
            assert total(point) == pytest.approx(own)


@pytest.mark.parametrize("mode", MODES)
def test_each_result_is_measured_as_on_its_span_also_of_a_refused_call(telemetry: Telemetry, mode: str) -> None:
    def talk() -> str:
        """Talk."""
        return "on and on " * 1000

    @tool
    def draw() -> ImagePart:
        """Draw."""
        return ImagePart(data=b"\x89PNG\r\n\x1a\n" + bytes(3000))

    calls = [ToolCall("talk"), ToolCall("draw"), ToolCall("fail"), ToolCall("invented"), ToolCall("talk", "[]")]
    client = ChatClient(
        ScriptedChatModel([calls, "x"]),
        tools=[talk, draw, fail],
        advisors=[Guard(), ToolCallingAdvisor(ToolCallingManager(max_result_characters=500))],
        telemetry=telemetry.options,
    )
    results = run(mode, client.prompt("?")).tool_results
    assert [result.cut for result in results] == [True, False, False, False, False]

    def key(attributes: Any) -> tuple[Any, ...]:
        return attributes[names.TOOL_NAME], attributes.get(names.TOOL_RESULT_CUT)

    on_spans: defaultdict[Any, list[int]] = defaultdict(list)
    for span in (*telemetry.named("execute_tool"), *telemetry.named("refuse_tool")):
        on_spans[key(span.attributes)].append((span.attributes or {})[names.TOOL_RESULT_SIZE])  # type: ignore[arg-type]
    assert on_spans.keys() == {("talk", True), ("talk", None), ("draw", None), ("fail", None), ("_unknown", None)}
    assert on_spans["draw", None][0] > 3000
    measured = {key(point.attributes): point for point in telemetry.metric(names.TOOL_RESULT_SIZE_METRIC.name)}
    assert {each: (point.count, total(point)) for each, point in measured.items()} == {
        each: (len(sizes), sum(sizes)) for each, sizes in on_spans.items()
    }


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_cancelled_or_fails_the_run_without_a_result_has_no_size(
    telemetry: Telemetry, mode: str
) -> None:
    client = ChatClient(
        ScriptedChatModel([adds(1, 1), "x"]), tools=[add], advisors=[Broken("advise_tool")], telemetry=telemetry.options
    )
    with pytest.raises(LookupError):
        run(mode, client.prompt("?"))
    assert len(telemetry.metric(names.INVOKE_AGENT_DURATION.name)) == 1
    assert telemetry.metric(names.TOOL_RESULT_SIZE_METRIC.name) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_cost_of_a_run_is_measured_by_why_it_stopped_also_if_it_failed(mode: str) -> None:
    telemetry = Telemetry(prices=Prices())
    for turns in (["x"], [adds(1, 1), "x"], [adds(1, 1), RuntimeError("no")], [RuntimeError("no")]):
        client = ChatClient(ScriptedChatModel(turns, usage=USAGE), tools=[add], telemetry=telemetry.options)
        with suppress(RuntimeError):
            run(mode, client.prompt("?"))
    limits = LoopLimits(max_iterations=1, on_limit="raise")
    client = ChatClient(
        ScriptedChatModel([adds(1, 1)], usage=USAGE), tools=[add], limits=limits, telemetry=telemetry.options
    )
    with suppress(LoopLimitExceeded):
        run(mode, client.prompt("?"))
    found = {
        point.attributes[names.LOOP_STOP_REASON]: (point.count, total(point))
        for point in telemetry.metric(names.LOOP_COST_METRIC.name)
    }
    # The run whose first model call failed has no cost.
    assert found == {"answered": (2, 0.75), "error": (1, 0.25), "max_iterations": (1, 0.25)}


@pytest.mark.parametrize("mode", MODES)
def test_a_run_without_a_price_has_no_cost_in_the_metrics(mode: str) -> None:
    for telemetry, model in ((Telemetry(), "scripted"), (Telemetry(prices=Prices()), "without a price")):
        scripted = ScriptedChatModel(["x"], usage=USAGE, model=model)
        run(mode, ChatClient(scripted, telemetry=telemetry.options).prompt("?"))
        assert len(telemetry.metric(names.LOOP_ITERATIONS_METRIC.name)) == 1
        assert telemetry.metric(names.LOOP_COST_METRIC.name) == []


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_cannot_be_understood_still_counts_as_a_model_call(telemetry: Telemetry, mode: str) -> None:
    odd = ChatResponse.model_validate({"message": {"parts": []}, "finish_reason": "tool_call", "usage": USAGE})
    client = ChatClient(ScriptedChatModel([odd]), telemetry=telemetry.options)
    with pytest.raises(InvalidResponse):
        run(mode, client.prompt("?"))
    assert [total(point) for point in telemetry.metric(names.INVOKE_AGENT_INFERENCE_CALLS.name)] == [1]
    assert (telemetry.one("invoke_agent assistant").attributes or {})[names.USAGE_INPUT_TOKENS] == 9


def test_active_runs_are_counted_and_their_age_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = Telemetry()
    active: Callable[[], float] = lambda: total(telemetry.metric(names.RUN_ACTIVE.name)[0])  # noqa: E731
    oldest: Callable[[], float] = lambda: total(telemetry.metric(names.RUN_OLDEST_ACTIVE.name)[0])  # noqa: E731
    stream = ChatClient(ScriptedChatModel(["one two"]), telemetry=telemetry.options).prompt("?").stream()
    next(stream)
    assert active() == 1
    assert oldest() > 0
    later = time.monotonic() + 100
    with monkeypatch.context() as patched:
        patched.setattr("traced_tools.observe.instruments.time.monotonic", lambda: later)
        assert oldest() > 99
    stream.close()
    assert (active(), oldest()) == (0, 0)


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_the_time_to_the_first_chunk_is_the_same_on_the_span_and_in_the_metric(telemetry: Telemetry, mode: str) -> None:
    scenario(telemetry, mode)
    on_spans = [
        (span.attributes or {})[names.RESPONSE_TIME_TO_FIRST_CHUNK] for span in telemetry.named("chat scripted")
    ]
    (counted,) = telemetry.metric(names.INFERENCE_TIME_TO_FIRST_CHUNK.name)
    assert counted.count == len(on_spans) == 2
    assert total(counted) == pytest.approx(sum(on_spans))  # type: ignore[arg-type]


def test_the_duration_of_embeddings_is_the_spans_duration(telemetry: Telemetry) -> None:
    RemoteEmbedder().embed(["one"], telemetry=telemetry.options)
    span = telemetry.one("embeddings embedder")
    (counted,) = telemetry.metric(names.EMBEDDINGS_DURATION.name)
    assert total(counted) == pytest.approx(((span.end_time or 0) - (span.start_time or 0)) / 1e9, abs=2e-9)


class EagerMeter(ApiMeter):
    """A meter whose readers collect each observable instrument while the next ones are created."""

    def observe_up_down_counter(self, metric: Metric, observe: Observe) -> None:
        super().observe_up_down_counter(metric, observe)
        list(observe(CallbackOptions()))

    def observe_gauge(self, metric: Metric, observe: Observe) -> None:
        super().observe_gauge(metric, observe)
        list(observe(CallbackOptions()))

    def observe_counter(self, metric: Metric, observe: Observe) -> None:
        super().observe_counter(metric, observe)
        list(observe(CallbackOptions()))


def test_a_collection_while_instruments_are_created_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    Instruments(EagerMeter(provider.get_meter("test")), RELEASED)
    found = {metric.name for metric in iter_metrics(reader.get_metrics_data())}
    provider.shutdown()
    assert caplog.text == ""
    assert names.TELEMETRY_FAILURES.name not in found
