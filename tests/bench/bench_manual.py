"""What a pass costs that an application drives by hand, beside a pass of the loop, with everything on."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from tests.bench.report import Row, Section
from tests.bench.timing import Case, sample
from tests.bench.workload import NO_LIMITS, CountingModel, Sdk, add, prompt, repeated
from traced_tools import TelemetryOptions, observe
from traced_tools.core.messages import ToolMessage, UserMessage
from traced_tools.models import ChatRequest

SHORT, LONG = 10, 50
TARGET = 1.1


def by_hand(passes: int, telemetry: TelemetryOptions) -> Callable[[], None]:
    """Return a function that plays a run of so many passes by hand."""
    model = CountingModel(passes)

    def play() -> None:
        messages, asks = list[Any]([UserMessage("What is 41 + 1?")]), True
        with observe.run("bench", model="bench-1", provider="bench", limits=NO_LIMITS, telemetry=telemetry) as run:
            while asks:
                with run.iteration():
                    with run.model_call(tools=add) as call:
                        response = call.answered(model.call(ChatRequest(tuple(messages))))
                    asks = bool(response.tool_calls)
                    results = [run.execute(add, tool_call).part() for tool_call in response.tool_calls]
                    messages += [response.message, ToolMessage(results)] if asks else []

    return play


def manual_section(rounds: int, providers: Sdk) -> Section:
    """Return the cost of a pass by hand, and its ratio to a pass of the loop."""
    cases = {}
    for length in (SHORT, LONG):
        cases[f"by hand {length}"] = Case(by_hand(length, providers.options))
        cases[f"loop {length}"] = Case(repeated(prompt(length, providers.options).call, 1))
    series = sample(cases, rounds, providers.flush)
    manual, loop = (
        series[f"{name} {LONG}"].slope(series[f"{name} {SHORT}"], LONG - SHORT) for name in ("by hand", "loop")
    )
    return Section(
        "one pass by hand, everything on",
        [
            Row("by hand", statistics.median(manual.cpu), "us", statistics.median(manual.wall), manual.fastest),
            Row("that / the loop", manual.ratio(loop), "x", at_most=TARGET, digits=2),
        ],
    )
