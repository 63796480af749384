"""The number of metric series does not grow with the number of runs or with names that models and tools make up."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from tests.captured import Telemetry, series_key
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from tests.observe.closed_list import assert_consistent
from tests.observe.runs import USAGE, adds
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    LoopLimits,
    TelemetryOptions,
    ToolCall,
)
from traced_tools.loop.advisor import AdviseNext
from traced_tools.mcp.scopes import McpEndpoint, McpRequestScope
from traced_tools.models import ChatRequest, ChatResponse, OpenAIChatModel
from traced_tools.observe import names
from traced_tools.observe.run_telemetry import RunTelemetry
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel

WARM_UP = 4 * names.MAX_LABEL_VALUES
FRESH = itertools.count()


def invented() -> Iterator[str]:
    """Names that a model might write: new ones, and ones that are nearly a tool's."""
    for number in FRESH:
        yield f"invented_{number}"
        yield f"add{number}"
        yield "add" + " " * (number % 1000 + 1)
        yield f"functions.add:{number}"
        yield f"{names.TOOL_NAME}\n# {number} é\udcff"


INVENTED = invented()


def inventive() -> str:
    """Fail in a new way each time."""
    raise type(f"Error{next(FRESH)}", (Exception,), {})


def ask(request: ChatRequest) -> list[ToolCall]:
    """The calls of one iteration: an unknown tool, and a tool that works or fails."""
    number = next(FRESH)
    calls = [ToolCall(next(INVENTED), {"a": number}), adds(number, 1) if number % 2 else ToolCall("inventive")]
    return [ToolCall(each.name, each.arguments, id=f"id-{number}-{place}") for place, each in enumerate(calls)]


def run_often(telemetry: Telemetry, count: int) -> None:
    """Run so often, with nothing that was there before: ids, conversations, names, questions, kinds of error."""
    options = TelemetryOptions(telemetry.tracer_provider, telemetry.meter_provider)
    turns = itertools.chain.from_iterable((ask, "x") for _ in range(count))
    client = ChatClient(
        ScriptedChatModel(list(turns), usage=USAGE), tools=[add, inventive], telemetry=options, limits=LoopLimits()
    )
    for _ in range(count):
        client.prompt(f"question {next(FRESH)}", conversation_id=f"c-{next(FRESH)}").call()


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_number_of_series_does_not_grow_with_the_number_of_runs(count: int) -> None:
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    run_often(telemetry, WARM_UP)
    series = {series_key(point) for point in telemetry.metrics}
    run_often(telemetry, count)
    assert {series_key(point) for point in telemetry.metrics} == series
    (runs,) = telemetry.metric(names.INVOKE_AGENT_DURATION.name)
    assert runs.count == count + WARM_UP
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_the_tool_label_is_a_registered_name_or_a_placeholder(telemetry: Telemetry, mode: str) -> None:
    model = ScriptedChatModel([*[[ToolCall(next(INVENTED)) for _ in range(10)] for _ in range(10)], "x"])
    run(mode, ChatClient(model, tools=[add], telemetry=telemetry.options).prompt("?"))
    labels = {point.attributes[names.TOOL_NAME] for point in telemetry.metrics if names.TOOL_NAME in point.attributes}
    assert labels == {names.UNKNOWN_TOOL}


def test_the_number_of_tools_and_errors_of_an_mcp_server_is_limited() -> None:
    telemetry, server = Telemetry(), McpEndpoint(f"server-{next(FRESH)}", "pipe")
    options = TelemetryOptions(telemetry.tracer_provider, telemetry.meter_provider)
    for number in range(2 * names.MAX_MCP_TOOLS):
        run_telemetry = RunTelemetry(options, "travel")
        with McpRequestScope(run_telemetry, server, "tools/call", f"tool_{number}", number, "2026-07-28") as request:
            request.refused(-number)
    labels = [point.attributes for point in telemetry.metric(names.MCP_CLIENT_DURATION.name)]
    assert len({each[names.TOOL_NAME] for each in labels}) == names.MAX_MCP_TOOLS + 1
    for name in (names.ERROR_TYPE, names.RPC_STATUS_CODE):
        assert len({each[name] for each in labels}) == names.MAX_LABEL_VALUES + 1
    assert not {names.JSONRPC_REQUEST_ID, names.SERVER_ADDRESS} & {name for each in labels for name in each}


def test_the_number_of_error_types_per_tool_is_limited() -> None:
    telemetry = Telemetry()

    def inventive_too() -> str:
        """Fail in a new way each time."""
        return inventive()

    model = ScriptedChatModel([ToolCall("inventive_too"), "x"] * 100)
    client = ChatClient(model, tools=[inventive_too], telemetry=telemetry.options)
    for _ in range(100):
        client.prompt("?").call()
    found = {point.attributes[names.ERROR_TYPE] for point in telemetry.metric(names.EXECUTE_TOOL_DURATION.name)}
    assert len(found) == names.MAX_LABEL_VALUES + 1
    assert names.OTHER in found


@pytest.mark.parametrize("mode", MODES)
def test_the_number_of_response_models_is_limited(mode: str) -> None:
    telemetry = Telemetry()
    model = f"echoing in {mode}"
    answers = [ChatResponse(AssistantMessage("x"), usage=USAGE, model=f"answer-{number}") for number in range(100)]
    client = ChatClient(Named(answers, model), telemetry=telemetry.options)
    for _ in answers:
        run(mode, client.prompt("?"))
    shown = {point.attributes[names.RESPONSE_MODEL] for point in telemetry.metric(names.INFERENCE_DURATION.name)}
    assert len(shown) == names.MAX_LABEL_VALUES + 1
    assert names.OTHER in shown
    on_spans = {(span.attributes or {})[names.RESPONSE_MODEL] for span in telemetry.named(f"chat {model}")}
    assert len(on_spans) == 100


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("raiser", ["model", "advisor"])
def test_the_number_of_error_types_of_models_and_advisors_is_limited(mode: str, raiser: str) -> None:
    telemetry = Telemetry()
    kinds = [type(f"Error{number}", (Exception,), {}) for number in range(100)]
    turns = [kind() for kind in kinds] if raiser == "model" else []
    advisors = [Raising(f"raising in {mode}", kinds)] if raiser == "advisor" else []
    client = ChatClient(
        Named(turns, f"failing in {mode}"),
        name=f"{raiser} in {mode}",
        advisors=advisors,
        telemetry=telemetry.options,
    )
    for kind in kinds:
        with pytest.raises(kind):
            run(mode, client.prompt("?"))
    for metric in (names.INVOKE_AGENT_DURATION, names.ADVISOR_DURATION, names.INFERENCE_DURATION):
        for labels in (point.attributes for point in telemetry.metric(metric.name)):
            assert len(labels.get(names.ERROR_TYPE, "")) < 100
    shown = {point.attributes[names.ERROR_TYPE] for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)}
    assert len(shown) == names.MAX_LABEL_VALUES + 1
    series = [series_key(point) for point in telemetry.metrics if names.ERROR_TYPE in point.attributes]
    assert len(series) <= 6 * (names.MAX_LABEL_VALUES + 1)


def test_the_number_of_agent_names_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.observe.sanitize._SEEN", defaultdict(set))
    telemetry = Telemetry()
    model = ScriptedChatModel(["x"] * 200, usage=USAGE)
    for number in range(200):
        ChatClient(model, name=f"agent-{number}", telemetry=telemetry.options).prompt("?").call()
    for metric in (names.INVOKE_AGENT_DURATION, names.INFERENCE_DURATION, names.RUN_ACTIVE, names.RUN_OLDEST_ACTIVE):
        shown = {point.attributes[names.AGENT_NAME] for point in telemetry.metric(metric.name)}
        assert len(shown) == names.MAX_AGENTS + 1
        assert names.OTHER in shown
    assert (telemetry.one("invoke_agent agent-199").attributes or {})[names.AGENT_NAME] == "agent-199"


@pytest.mark.parametrize("name", ["a" * 10_000, "a\nb", "a\x1b[31m"])
def test_an_unprintable_agent_name_is_replaced_in_labels(name: str) -> None:
    telemetry = Telemetry()
    ChatClient(ScriptedChatModel(["x"]), name=name, telemetry=telemetry.options).prompt("?").call()
    assert {point.attributes[names.AGENT_NAME] for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)} == {
        names.OTHER
    }


@pytest.mark.parametrize("field", ["model", "id"])
def test_overlong_names_and_ids_are_replaced(field: str) -> None:
    telemetry = Telemetry()
    body = {"id": "1", "model": "m", "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    with ReplayServer([Reply.json({**body, field: MARKER * 10_000})]) as server:
        with OpenAIChatModel("m", base_url=server.url) as model:
            ChatClient(model, telemetry=telemetry.options).prompt("?").call()
    attributes = telemetry.one("chat m").attributes or {}
    assert attributes[names.RESPONSE_ID if field == "id" else names.RESPONSE_MODEL] == names.OTHER
    assert MARKER not in "".join(span.to_json() for span in telemetry.spans)
    assert MARKER not in everything([point.attributes for point in telemetry.metrics])


def test_a_cancelled_run_is_cancelled_in_metrics_beyond_the_error_type_limit() -> None:
    telemetry = Telemetry()
    kinds = [type(f"Odd{number}", (Exception,), {}) for number in range(40)]
    client = ChatClient(Named([*[kind() for kind in kinds], "one two"], "odd"), name="odd", telemetry=telemetry.options)
    for kind in kinds:
        with pytest.raises(kind):
            client.prompt("?").call()
    with client.prompt("?").stream() as stream:
        next(stream)
    assert (telemetry.named("invoke_agent odd")[-1].attributes or {})[names.ERROR_TYPE] == names.CANCELLED


class Named(ScriptedChatModel):
    """A scripted model with a name of its own: names are what errors and answers are counted by."""

    def __init__(self, turns: Iterable[Any], name: str) -> None:
        super().__init__(list(turns))
        self.model = name


class Raising(Advisor):
    """Raises an error of another kind each time."""

    order = 100

    def __init__(self, name: str, kinds: Iterable[type[Exception]]) -> None:
        self.name = name
        self._kinds = iter(kinds)

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        raise next(self._kinds)
