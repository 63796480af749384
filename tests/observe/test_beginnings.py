"""The start of runs and spans: which providers are used, and which attributes a sampler receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState

from tests.captured import Telemetry
from tests.modes import MODES, run
from tests.observe.all_runs import RUNS, runs_of_everything
from tests.observe.closed_list import APPLICATION, OPERATIONS, word_of
from tests.observe.runs import Guard, adds, scenario
from tests.sample_tools import add
from traced_tools import ChatClient, TelemetryOptions, ToolCall, __version__
from traced_tools.core.enums import HOOKS
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel


class Asking(Sampler):
    """Samples all spans, and stores the attributes that it received for each, by span name."""

    def __init__(self) -> None:
        self.received: list[tuple[str, SpanKind | None, dict[str, Any]]] = []

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        self.received.append((name, kind, dict(attributes or {})))
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self) -> str:
        return "asking"


AT_START = {
    "invoke_agent": {names.OPERATION_NAME, names.AGENT_NAME, names.REQUEST_MODEL},
    "iteration": {names.ITERATION_INDEX},
    "chat": {
        *(names.OPERATION_NAME, names.PROVIDER_NAME, names.REQUEST_MODEL, names.AGENT_NAME, names.ITERATION_INDEX),
        *(names.SERVER_ADDRESS, names.SERVER_PORT),
    },
    "execute_tool": {names.OPERATION_NAME, names.TOOL_NAME, names.AGENT_NAME, names.ITERATION_INDEX},
    **{hook: {names.ADVISOR_NAME, names.ADVISOR_HOOK} for hook in HOOKS},
}


@pytest.mark.parametrize("mode", MODES)
def test_a_sampler_receives_the_distinguishing_attributes(mode: str) -> None:
    sampler = Asking()
    scenario(Telemetry(sampler=sampler), mode)
    for name, _, attributes in sampler.received:
        assert AT_START[name.split()[0]] <= set(attributes), name
    assert {name.split()[0] for name, _, _ in sampler.received} >= {"invoke_agent", "iteration", "chat", "execute_tool"}


@pytest.mark.parametrize("each", RUNS, ids=lambda each: each.__name__)
def test_sampler_attributes_equal_those_at_the_end_of_the_span(each: Any) -> None:
    sampler = Asking()
    telemetry = Telemetry(sampler=sampler)
    each(telemetry)
    for span, (name, kind, attributes) in zip(telemetry.spans, sampler.received, strict=False):
        if word_of(span) != "refuse_tool" and span.name == name:  # spans at the same instant may be in another order
            assert kind is span.kind
            assert attributes.items() <= dict(span.attributes or {}).items()


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_span_gets_its_operation_when_the_tool_is_certain_to_run(mode: str) -> None:
    sampler = Asking()
    telemetry = Telemetry(sampler=sampler)
    model = ScriptedChatModel([[adds(1, 1), ToolCall("fail")], "x"])
    guarded = ChatClient(model, tools=[add], advisors=[Guard()], telemetry=telemetry.options)
    run(mode, guarded.prompt("?"))
    (attributes_at_start,) = [attributes for name, _, attributes in sampler.received if name == "execute_tool add"]
    assert names.OPERATION_NAME not in attributes_at_start
    assert (telemetry.one("execute_tool add").attributes or {})[names.OPERATION_NAME] in OPERATIONS


# Scope and providers.


def test_all_signals_have_the_packages_name_and_version_and_no_schema() -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT", cumulative=True)
    runs_of_everything(telemetry)
    data = telemetry.metrics_data()
    scopes = [span.instrumentation_scope for span in telemetry.spans]
    scopes += [each.scope for resource in data.resource_metrics for each in resource.scope_metrics]
    scopes += [record.instrumentation_scope for record in telemetry.records]
    found = {(scope.name, scope.version, scope.schema_url) for scope in scopes if scope is not None}
    assert found <= {(names.SCOPE, __version__, ""), (names.SCOPE, __version__, None)}
    assert APPLICATION not in str(found) and len(scopes) > 100


@pytest.mark.parametrize("mode", MODES)
def test_global_providers_that_are_set_after_a_client_was_made_are_used(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ChatClient(ScriptedChatModel(["before", adds(1, 1), "after"]), tools=[add])
    run(mode, client.prompt("?"))
    telemetry = Telemetry()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: telemetry.tracer_provider)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: telemetry.meter_provider)
    monkeypatch.setattr(_logs, "get_logger_provider", lambda: telemetry.logger_provider)
    run(mode, client.prompt("?"))
    assert len(telemetry.named("invoke_agent assistant")) == len(telemetry.named("execute_tool add")) == 1
    assert [point.count for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)] == [1]
    assert len(telemetry.events_named(names.LOOP_STOP_EVENT.name)) == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("signal", ["tracer_provider", "meter_provider", "logger_provider"])
def test_each_signal_may_have_its_own_provider(mode: str, signal: str) -> None:
    telemetry = Telemetry()
    only = TelemetryOptions(**{signal: getattr(telemetry, signal)})
    model = ScriptedChatModel([adds(1, 1), "x"])
    run(mode, ChatClient(model, tools=[add], telemetry=only).prompt("?"))
    emitted = {
        "tracer_provider": telemetry.spans,
        "meter_provider": telemetry.metrics,
        "logger_provider": telemetry.events,
    }
    assert [name for name, what in emitted.items() if what] == [signal]
