"""The number of series does not grow with the number of runs, nor with what models and tools invent."""

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
from traced_tools.advisors.base import AdviseNext
from traced_tools.models import ChatRequest, ChatResponse, OpenAIChatModel
from traced_tools.observe import names
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel

WARM_UP = 4 * names.MOST_WORDS_OF_A_LABEL
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
    """What a model asks for in one pass: a tool that nobody registered, and one that works or one that fails."""
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
def test_the_label_of_a_tool_is_a_registered_name_or_stands_for_all_others(telemetry: Telemetry, mode: str) -> None:
    model = ScriptedChatModel([*[[ToolCall(next(INVENTED)) for _ in range(10)] for _ in range(10)], "x"])
    run(mode, ChatClient(model, tools=[add], telemetry=telemetry.options).prompt("?"))
    labels = {point.attributes[names.TOOL_NAME] for point in telemetry.metrics if names.TOOL_NAME in point.attributes}
    assert labels == {names.UNKNOWN_TOOL}


def test_the_kinds_of_error_a_tool_may_show_are_bounded() -> None:
    telemetry = Telemetry()

    def inventive_too() -> str:
        """Fail in a new way each time."""
        return inventive()

    model = ScriptedChatModel([ToolCall("inventive_too"), "x"] * 100)
    client = ChatClient(model, tools=[inventive_too], telemetry=telemetry.options)
    for _ in range(100):
        client.prompt("?").call()
    found = {point.attributes[names.ERROR_TYPE] for point in telemetry.metric(names.EXECUTE_TOOL_DURATION.name)}
    assert len(found) == names.MOST_WORDS_OF_A_LABEL + 1
    assert names.OTHER in found


@pytest.mark.parametrize("mode", MODES)
def test_the_models_that_a_server_says_have_answered_are_bounded(mode: str) -> None:
    telemetry = Telemetry()
    model = f"echoing in {mode}"
    answers = [ChatResponse(AssistantMessage("x"), usage=USAGE, model=f"answer-{number}") for number in range(100)]
    client = ChatClient(Named(answers, model), telemetry=telemetry.options)
    for _ in answers:
        run(mode, client.prompt("?"))
    shown = {point.attributes[names.RESPONSE_MODEL] for point in telemetry.metric(names.OPERATION_DURATION.name)}
    assert len(shown) == names.MOST_WORDS_OF_A_LABEL + 1
    assert names.OTHER in shown
    on_spans = {(span.attributes or {})[names.RESPONSE_MODEL] for span in telemetry.named(f"chat {model}")}
    assert len(on_spans) == 100


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("raiser", ["model", "advisor"])
def test_the_kinds_of_error_that_models_and_advisors_may_show_are_bounded(mode: str, raiser: str) -> None:
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
    for metric in (names.INVOKE_AGENT_DURATION, names.ADVISOR_DURATION, names.OPERATION_DURATION):
        for labels in (point.attributes for point in telemetry.metric(metric.name)):
            assert len(labels.get(names.ERROR_TYPE, "")) < 100
    shown = {point.attributes[names.ERROR_TYPE] for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)}
    assert len(shown) == names.MOST_WORDS_OF_A_LABEL + 1
    series = [series_key(point) for point in telemetry.metrics if names.ERROR_TYPE in point.attributes]
    assert len(series) <= 6 * (names.MOST_WORDS_OF_A_LABEL + 1)


def test_the_agents_that_a_process_may_show_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.observe.sanitize._SEEN", defaultdict(set))
    telemetry = Telemetry()
    model = ScriptedChatModel(["x"] * 200, usage=USAGE)
    for number in range(200):
        ChatClient(model, name=f"agent-{number}", telemetry=telemetry.options).prompt("?").call()
    for metric in (names.INVOKE_AGENT_DURATION, names.OPERATION_DURATION, names.RUN_ACTIVE, names.RUN_OLDEST_ACTIVE):
        shown = {point.attributes[names.AGENT_NAME] for point in telemetry.metric(metric.name)}
        assert len(shown) == names.MOST_AGENTS + 1
        assert names.OTHER in shown
    assert (telemetry.one("invoke_agent agent-199").attributes or {})[names.AGENT_NAME] == "agent-199"


@pytest.mark.parametrize("name", ["a" * 10_000, "a\nb", "a\x1b[31m"])
def test_an_agents_name_that_is_no_line_of_text_is_no_label(name: str) -> None:
    telemetry = Telemetry()
    ChatClient(ScriptedChatModel(["x"]), name=name, telemetry=telemetry.options).prompt("?").call()
    assert {point.attributes[names.AGENT_NAME] for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)} == {
        names.OTHER
    }


@pytest.mark.parametrize("field", ["model", "id"])
def test_what_is_too_long_for_a_name_or_an_id_is_not_taken_for_one(field: str) -> None:
    telemetry = Telemetry()
    body = {"id": "1", "model": "m", "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    with ReplayServer([Reply.json({**body, field: MARKER * 10_000})]) as server:
        with OpenAIChatModel("m", base_url=server.url) as model:
            ChatClient(model, telemetry=telemetry.options).prompt("?").call()
    attributes = telemetry.one("chat m").attributes or {}
    assert attributes[names.RESPONSE_ID if field == "id" else names.RESPONSE_MODEL] == names.OTHER
    assert MARKER not in "".join(span.to_json() for span in telemetry.spans)
    assert MARKER not in everything([point.attributes for point in telemetry.metrics])


def test_a_cancelled_run_is_told_as_such_however_many_errors_came_before() -> None:
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
