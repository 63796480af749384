"""A loop by hand emits what the built-in loop does, except for what docs/details/loops-by-hand.md lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.audit.draft_trails import KeptTrail, auditing
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.observe.closed_list import assert_consistent
from tests.sample_tools import add
from traced_tools import Advisor, ChatClient, Message, ToolCall, UserMessage
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

Fields = dict[str, set[str]]


class Seen:
    """Everything that a loop emits, and the client and advisors that emit it."""

    def __init__(self) -> None:
        self.telemetry, self.watching, self.trail = Telemetry(cumulative=True), Watching(), KeptTrail()
        calls = [ToolCall("add", {"a": 1, "b": 2}, id="c1"), ToolCall("add", {"a": "x", "b": 2}, id="c2")]
        self.advisors: list[Advisor] = [self.watching, auditing(self.trail)]
        model = ScriptedChatModel([calls, "three"])
        self.client = ChatClient(model, tools=[add], advisors=self.advisors, telemetry=self.telemetry.options)

    @property
    def spans(self) -> Fields:
        return united((span.name, span.attributes or {}) for span in self.telemetry.spans)

    @property
    def logs(self) -> Fields:
        records = [each.log_record for each in self.telemetry.records]
        return united((each.event_name or "", each.attributes or {}) for each in records)

    @property
    def metrics(self) -> Fields:
        return united(
            (metric.name, point.attributes)
            for resource in self.telemetry.metrics_data().resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        )

    @property
    def events(self) -> Fields:
        return united((each.type, each.model_dump(exclude_none=True)) for each in self.watching.events)

    @property
    def audit(self) -> Fields:
        return united((each.kind, each.fields) for each in self.trail.drafts)


def united(named: Iterable[tuple[str, Mapping[str, Any] | None]]) -> Fields:
    """Return the keys that the mappings of each name have together."""
    found: Fields = {}
    for name, fields in named:
        found.setdefault(name, set()).update(fields or {})
    return found


def differences(built_in: Fields, by_hand: Fields) -> Fields:
    """Return what only the built-in loop emits, by name; the loop by hand must emit nothing else."""
    for name, fields in by_hand.items():
        assert fields <= built_in[name], (name, fields - built_in[name])
    return {
        name: fields - by_hand.get(name, set())
        for name, fields in built_in.items()
        if name not in by_hand or fields != by_hand[name]
    }


def built_in_loop() -> Seen:
    seen = Seen()
    seen.client.prompt("?").call()
    return seen


def loop_by_hand() -> Seen:
    seen = Seen()
    messages: tuple[Message, ...] = (UserMessage("?"),)
    response = seen.client.prompt(messages=messages, tool_calling=False).call()
    while response.tool_calls:
        done = ToolCallingManager().execute_tool_calls(
            messages, response, tools=[add], advisors=seen.advisors, telemetry=seen.telemetry.options
        )
        messages = done.conversation_history
        response = seen.client.prompt(messages=messages, tool_calling=False).call()
    return seen


def test_a_loop_by_hand_emits_what_the_built_in_loop_emits_except_iterations() -> None:
    built_in, by_hand = built_in_loop(), loop_by_hand()
    assert_consistent(by_hand.telemetry)

    spans = differences(built_in.spans, by_hand.spans)
    hooks = [f"{hook} tool_calling" for hook in ("advise", "initialize", "before", "after", "finalize")]
    assert not by_hand.spans.keys() & {"iteration", *hooks}
    assert spans.keys() >= {"iteration", *hooks}
    inside = {name: only for name, only in spans.items() if name not in ("iteration", *hooks)}
    assert inside
    ledger = inside.pop("invoke_agent assistant")
    assert ledger <= {*names.TIME_BY_KIND.values()}
    assert all(only == {names.ITERATION_INDEX} for only in inside.values())

    logs = differences(built_in.logs, by_hand.logs)
    assert all(only == {names.ITERATION_INDEX} for only in logs.values())
    metrics = differences(built_in.metrics, by_hand.metrics)
    assert metrics.pop("traced_tools.tool.decisions") == {names.AGENT_VERSION}
    assert metrics.keys() == {"traced_tools.iteration.duration"}
    assert differences(built_in.events, by_hand.events) == {
        "iteration_started": {"trace_id", "span_id"},
        "iteration_finished": {"trace_id", "span_id"},
    }
    assert differences(built_in.audit, by_hand.audit) == {"intent": {"model", "provider", "response_id"}}
    assert by_hand.trail.stories() == built_in.trail.stories()


def test_the_calls_by_hand_belong_to_the_span_that_is_current() -> None:
    by_hand = loop_by_hand()
    roots = [span.name for span in by_hand.telemetry.children(None)]
    assert sorted(roots) == ["execute_tool add", "invoke_agent assistant", "invoke_agent assistant", "refuse_tool add"]

    seen = Seen()
    with seen.telemetry.tracer.start_as_current_span("my loop"):
        response = seen.client.prompt("?", tool_calling=False).call()
        messages = [UserMessage("?")]
        ToolCallingManager().execute_tool_calls(messages, response, tools=[add], telemetry=seen.telemetry.options)
    assert [span.name for span in seen.telemetry.children(None)] == ["my loop"]
