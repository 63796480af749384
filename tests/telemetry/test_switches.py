"""What the options leave out, and set-ups that record nothing or raise."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from tests.helpers import MARKER, MODES, Telemetry, run
from tests.telemetry.closed_list import assert_consistent, word_of
from tests.telemetry.runs import BrokenSampler, Outside, add, adds, scenario
from traced_tools import (
    ChatClient,
    ChatClientRequest,
    TelemetryOptions,
    ToolCallingAdvisor,
)
from traced_tools.telemetry import names
from traced_tools.telemetry.scope import Scope
from traced_tools.telemetry.words import HOOKS
from traced_tools.testing import ScriptedChatModel


def hook_names(telemetry: Telemetry) -> set[str]:
    return {span.name for span in telemetry.spans if word_of(span) in HOOKS}


@pytest.mark.parametrize("mode", MODES)
def test_without_hook_spans_the_tree_is_what_the_conventions_know(mode: str) -> None:
    telemetry = Telemetry(hooks="none")
    scenario(telemetry, mode)
    assert_consistent(telemetry)
    assert hook_names(telemetry) == set()
    ((root, passes),) = telemetry.tree()
    assert (root, [name for name, _ in passes]) == ("invoke_agent travel", ["iteration", "iteration"])
    reference = Telemetry()
    scenario(reference, mode)
    metric = names.ADVISOR_DURATION.name
    assert {p.key: p.count for p in telemetry.metric(metric)} == {p.key: p.count for p in reference.metric(metric)}


@pytest.mark.parametrize("mode", MODES)
def test_only_hooks_that_a_subclass_wrote_can_be_asked_for(mode: str) -> None:
    class Loop(ToolCallingAdvisor):
        def before(self, request: ChatClientRequest) -> ChatClientRequest:
            return request

    telemetry = Telemetry(hooks="implemented")
    client = ChatClient(
        ScriptedChatModel(["x"]), advisors=[Outside()], tool_calling_advisor=Loop(), telemetry=telemetry.options
    )
    run(client.prompt("?"), mode)
    assert_consistent(telemetry)
    assert hook_names(telemetry) == {
        "advise outside",
        "before outside",
        "after outside",
        "advise tool_calling",
        "before tool_calling",
    }


@pytest.mark.parametrize("mode", MODES)
def test_without_iteration_spans_the_index_stays(mode: str) -> None:
    telemetry = Telemetry(iterations=False)
    scenario(telemetry, mode)
    assert_consistent(telemetry)
    assert telemetry.named("iteration") == []
    loop = telemetry.one("advise tool_calling")
    below = {span.name for span in telemetry.children(loop)}
    assert {"advise observer", "execute_tool add", "execute_tool fail"} <= below
    indexes = [(span.attributes or {})[names.ITERATION_INDEX] for span in telemetry.named("chat scripted")]
    assert indexes == [1, 2]
    assert (telemetry.one("execute_tool add").attributes or {})[names.ITERATION_INDEX] == 1
    assert sum(point.count for point in telemetry.metric(names.ITERATION_DURATION.name)) == 2


def test_an_unknown_switch_is_refused() -> None:
    with pytest.raises(ValueError, match="hooks"):
        TelemetryOptions(hooks="some")  # type: ignore[arg-type]


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
    assert telemetry.spans == []
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
    response = run(ChatClient(model, tools=[add], telemetry=options).prompt("?"), mode)
    assert (response.content, response.trace_id) == ("two", None)


@pytest.mark.parametrize("mode", MODES)
def test_a_tracing_set_up_that_raises_is_counted_and_does_not_disturb_the_run(
    mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.telemetry.scope._reported", set())
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry(sampler=BrokenSampler())
    assert scenario(telemetry, mode).content == "three it is"
    assert telemetry.spans == []
    (lost,) = telemetry.metric(names.TELEMETRY_FAILURES.name)
    assert lost.total > 5
    assert MARKER not in caplog.text
    assert "RuntimeError" in caplog.text
