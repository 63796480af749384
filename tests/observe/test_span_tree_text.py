from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode
from opentelemetry.util.types import AttributeValue

from tests.markers import MARKER
from traced_tools.client import ChatClient
from traced_tools.core.messages import ToolCall, Usage
from traced_tools.loop.advisor import BaseAdvisor
from traced_tools.observe import names
from traced_tools.observe.span_tree import OpenTraces, SpanNode, build_trees, format_seconds, render_text, summarize
from traced_tools.testing.scripted import ScriptedChatModel
from traced_tools.testing.telemetry import capture_telemetry

MS = 1_000_000


def context(span_id: int, trace_id: int = 1, *, remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, remote, TraceFlags(TraceFlags.SAMPLED))


def span(
    name: str,
    span_id: int,
    parent: SpanContext | None = None,
    *,
    at: int = 0,
    milliseconds: float = 1.0,
    status: Status | None = None,
    attributes: dict[str, AttributeValue] | None = None,
    trace_id: int = 1,
) -> ReadableSpan:
    """A finished span that began `at` nanoseconds after 1970."""
    return ReadableSpan(
        name,
        context(span_id, trace_id),
        parent,
        attributes=attributes,
        status=status or Status(),
        start_time=at,
        end_time=at + int(milliseconds * MS),
    )


def node(attributes: dict[str, AttributeValue], name: str = "a span") -> SpanNode:
    return SpanNode(name, 0.001, None, attributes)


def shape(tree: SpanNode) -> tuple[str, list[object]]:
    return tree.name, [shape(child) for child in tree.children]


def fail(text: str) -> str:
    """Fail."""
    raise ValueError(f"{MARKER} {text}")


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Memory(BaseAdvisor):
    name = "memory"
    order = 200

    def before(self, request):
        return request


def a_run() -> list[SpanNode]:
    """The trees of a run with a working, a failing and an unknown tool, and an advisor."""
    turns = [
        ToolCall(name="add", arguments={"a": 1, "b": 2}),
        [ToolCall(name="fail", arguments={"text": MARKER})],
        ToolCall(name=MARKER, arguments={}),
        f"answer {MARKER}",
    ]
    model = ScriptedChatModel(turns, usage=Usage(input_tokens=812, output_tokens=93))
    with capture_telemetry() as captured:
        client = ChatClient(model, tools=[add, fail], advisors=[Memory()], telemetry=captured.options)
        client.prompt(f"question {MARKER}").call()
        return captured.tree()


def test_spans_become_a_tree_with_children_in_the_order_they_started() -> None:
    root = context(1)
    spans = [span("late", 3, root, at=20), span("early", 2, root, at=10), span("root", 1)]
    assert [shape(tree) for tree in build_trees(spans)] == [("root", [("early", []), ("late", [])])]


def test_a_span_whose_parent_is_elsewhere_is_a_root() -> None:
    spans = [span("here", 2, context(99, remote=True)), span("below", 3, context(2), at=1)]
    assert [shape(tree) for tree in build_trees(spans)] == [("here", [("below", [])])]


def test_equal_span_ids_of_two_traces_are_not_mixed_up() -> None:
    spans = [span("one", 1), span("two", 1, trace_id=2, at=5), span("below two", 3, context(1, 2), trace_id=2, at=6)]
    assert [shape(tree) for tree in build_trees(spans)] == [("one", []), ("two", [("below two", [])])]


def test_no_spans_make_no_trees() -> None:
    assert build_trees([]) == []


def test_a_node_has_the_seconds_of_its_span() -> None:
    (tree,) = build_trees([span("work", 1, at=5, milliseconds=250)])
    assert tree.duration == pytest.approx(0.25)


def test_a_node_has_only_attributes_of_the_registry() -> None:
    (tree,) = build_trees([span("work", 1, attributes={names.TOOL_NAME: "add", "http.url": MARKER})])
    assert tree.attributes == {names.TOOL_NAME: "add"}


def test_a_node_of_a_failed_span_has_its_error_type_and_not_its_description() -> None:
    failed = Status(StatusCode.ERROR, MARKER)
    (ours,) = build_trees([span("ours", 1, status=failed, attributes={names.ERROR_TYPE: "ValueError"})])
    (theirs,) = build_trees([span("theirs", 1, status=failed)])
    (fine,) = build_trees([span("fine", 1)])
    assert (ours.error_type, theirs.error_type, fine.error_type) == ("ValueError", names.OTHER, None)
    assert MARKER not in render_text(theirs)


@pytest.mark.parametrize(
    ("attributes", "facts"),
    [
        ({names.USAGE_INPUT_TOKENS: 812, names.USAGE_OUTPUT_TOKENS: 93}, "812 -> 93 tokens"),
        ({names.USAGE_OUTPUT_TOKENS: 0}, "? -> 0 tokens"),
        ({names.TOOL_OUTCOME: "ok", names.TOOL_DECISION: "allowed", names.TOOL_ATTEMPTS: 1}, "ok"),
        (
            {
                names.TOOL_OUTCOME: "ok",
                names.TOOL_DECISION: "approved",
                names.APPROVAL_BY: "ana",
                names.REASON_CODE: "r",
            },
            "ok, approved by ana (r)",
        ),
        ({names.TOOL_OUTCOME: "ok", names.TOOL_ATTEMPTS: 3}, "ok, 3 attempts"),
        ({names.TOOL_DECISION: "denied"}, "denied"),
        ({names.TOOL_DECISION: "denied", names.REASON_CODE: "no", names.ADVISOR_NAME: "p"}, "denied by p (no)"),
        ({names.TOOL_DECISION: "denied", names.APPROVAL_BY: "ana", names.ADVISOR_NAME: "p"}, "denied by ana"),
        ({names.ADVISOR_SELF_TIME: 0.00012}, "self 0.12 ms"),
        ({names.ITERATION_TOOL_CALLS: 1}, "1 tool call"),
        ({names.ITERATION_TOOL_CALLS: 0}, ""),
        ({names.LOOP_STOP_REASON: "answered", names.LOOP_ITERATIONS: 2, names.LOOP_TOOL_CALLS: 3}, None),
        ({}, ""),
    ],
)
def test_a_summary_has_the_facts_of_a_span(attributes: dict[str, AttributeValue], facts: str | None) -> None:
    assert summarize(node(attributes)) == (facts if facts is not None else "answered, 2 iterations, 3 tool calls")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00012, "0.12 ms"), (0.0314, "31.4 ms"), (0.99999, "1000.0 ms"), (2.05, "2.05 s")]
)
def test_durations_have_the_unit_people_would_use(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_run_is_rendered_with_its_nesting() -> None:
    (tree,) = a_run()
    lines = [" ".join(line.split()[:-1]) for line in _without_numbers(render_text(tree))]
    assert [line for line in lines if "before" not in line and "after" not in line] == [
        "invoke_agent assistant",
        "└─ advise memory",
        "└─ advise tool_calling",
        "├─ initialize tool_calling",
        "├─ iteration",
        "│ ├─ chat scripted",
        "│ └─ execute_tool add",
        "├─ iteration",
        "│ ├─ chat scripted",
        "│ └─ execute_tool fail",
        "├─ iteration",
        "│ ├─ chat scripted",
        "│ └─ refuse_tool _unknown",
        "├─ iteration",
        "│ ├─ chat scripted",
        "└─ finalize tool_calling",
    ]


def _without_numbers(text: str) -> list[str]:
    """Each line up to its duration, which every line has."""
    return [line[: line.index(" ms")] for line in text.splitlines() if not line.startswith("time: ")]


def test_a_rendered_run_has_tokens_outcomes_and_errors_and_no_content() -> None:
    (tree,) = a_run()
    text = render_text(tree)
    facts = {line.split(" ms  ")[0].split("─ ")[-1].rsplit(" ", 1)[0].strip(): line for line in text.splitlines()}
    assert facts["chat scripted"].endswith("812 -> 93 tokens")
    assert facts["execute_tool add"].endswith("ok")
    assert facts["execute_tool fail"].endswith("error  failed: ValueError")
    assert facts["refuse_tool _unknown"].endswith("ms  failed: unknown_tool")
    assert "self " in facts["advise memory"]
    assert MARKER not in text


def test_the_last_line_of_a_run_says_what_its_time_went_to() -> None:
    seconds = {"model": 0.064, "tool": 0.0, "own": 0.012, "approval": 2.5}
    attributes: Any = {names.TIME_BY_KIND[kind]: value for kind, value in seconds.items()}
    (tree,) = build_trees([span("invoke_agent a", 1, attributes=attributes)])
    assert render_text(tree).splitlines()[-1] == "time: approval 2.50 s (97%), model 64.0 ms (2%), own 12.0 ms (0%)"


def test_control_characters_of_a_name_do_not_reach_the_terminal() -> None:
    (tree,) = build_trees([span("tool\x1b[2J\nnext", 1, attributes={names.TOOL_DECISION: "\x07"})])
    assert "\n" not in render_text(tree) and "\x1b" not in render_text(tree) and "\x07" not in render_text(tree)


def test_a_trace_is_buffered_until_none_of_its_spans_is_open() -> None:
    traces: OpenTraces[str] = OpenTraces()
    assert traces.begin(1) == traces.begin(1) == traces.begin(2) == []
    assert traces.end(1, "inner") == []
    assert traces.end(2, "other") == ["other"]
    assert traces.end(1, "outer") == ["inner", "outer"]
    assert traces.drain() == []


def test_a_trace_that_never_ends_is_released_in_parts() -> None:
    traces: OpenTraces[str] = OpenTraces(most_spans=2)
    for _ in range(4):
        traces.begin(1)
    assert [traces.end(1, "a"), traces.end(1, "b"), traces.end(1, "c")] == [[], ["a", "b"], []]
    assert traces.end(1, "d") == ["c", "d"]


def test_too_many_open_traces_release_the_oldest_and_lose_nothing() -> None:
    traces: OpenTraces[str] = OpenTraces(most_traces=2)
    traces.begin(1), traces.begin(1), traces.begin(2)
    traces.end(1, "first")
    assert traces.begin(3) == ["first"]
    assert traces.end(1, "second") == ["second"]


def test_buffered_spans_are_released_at_the_end() -> None:
    traces: OpenTraces[str] = OpenTraces()
    traces.begin(1), traces.begin(1)
    traces.end(1, "inner")
    assert traces.drain() == ["inner"]
