"""The number of series does not grow with the number of runs, nor with what models and tools invent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from tests.helpers import MODES, Telemetry, run
from tests.telemetry.closed_list import assert_consistent
from tests.telemetry.runs import USAGE, add, adds
from traced_tools import ChatClient, LoopLimits, TelemetryOptions, ToolCall
from traced_tools.models import ChatRequest
from traced_tools.telemetry import names
from traced_tools.testing import ScriptedChatModel

RUNS = 10_000
WARM_UP = 4 * names.MAX_ERROR_TYPES_PER_TOOL
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


def test_the_number_of_series_does_not_grow_with_the_number_of_runs() -> None:
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    run_often(telemetry, WARM_UP)
    series = {point.key for point in telemetry.points()}
    run_often(telemetry, RUNS)
    assert {point.key for point in telemetry.points()} == series
    (runs,) = telemetry.metric(names.INVOKE_AGENT_DURATION.name)
    assert runs.count == RUNS + WARM_UP
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_the_label_of_a_tool_is_a_registered_name_or_stands_for_all_others(telemetry: Telemetry, mode: str) -> None:
    model = ScriptedChatModel([*[[ToolCall(next(INVENTED)) for _ in range(10)] for _ in range(10)], "x"])
    run(ChatClient(model, tools=[add], telemetry=telemetry.options).prompt("?"), mode)
    labels = {point.labels[names.TOOL_NAME] for point in telemetry.points() if names.TOOL_NAME in point.labels}
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
    found = {point.labels[names.ERROR_TYPE] for point in telemetry.metric(names.EXECUTE_TOOL_DURATION.name)}
    assert len(found) == names.MAX_ERROR_TYPES_PER_TOOL + 1
    assert names.OTHER_ERROR in found
