"""What a memory of conversations reports: its operations, compactions, missing results and failures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from tests.captured import Telemetry, hex_ids, total
from tests.events.watching import Watching, check_sequence, raising
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.observe.exported import Wiretap
from tests.observe.memories import COMPACTED, Remembering, go_without, read_and_store, summarize
from traced_tools import (
    BaseAdvisor,
    ChatClient,
    ChatClientRequest,
    MemoryAdvisor,
    TelemetryOptions,
    ToolCall,
    UserMessage,
    tool,
)
from traced_tools.core.enums import DETAILS
from traced_tools.flow import deferred
from traced_tools.flow.deferred import in_finalizer
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory, recall_tool
from traced_tools.memory.telemetry import memory_failed, observe_compaction, observe_memory
from traced_tools.observe import MemoryCompacted, MemoryRead, MemoryStored, MissingResultsAnswered, names
from traced_tools.observe.content import ContentCapture
from traced_tools.observe.genai_messages import MemoryRecords
from traced_tools.observe.names.registry_types import Metric
from traced_tools.observe.observations import observe_missing_results, observe_model_call
from traced_tools.observe.off import OFF
from traced_tools.run.context import RunContext
from traced_tools.testing import ScriptedChatModel

AGENT = {names.AGENT_NAME: "travel"}
WHERE = {**AGENT, names.CONVERSATION_ID: "c-1"}
INSIDE, OUTSIDE = 400, 200


class Doing(BaseAdvisor):
    """Calls a function with each request that it sees."""

    def __init__(self, function: Any, order: int = INSIDE) -> None:
        self.name, self.order, self._function = "doing", order, function

    def before(self, request: ChatClientRequest) -> ChatClientRequest:
        self._function(request)
        return request


def ran(telemetry: Telemetry, *advisors: Any, mode: str = "call") -> None:
    """Run once, with a conversation."""
    client = ChatClient(ScriptedChatModel(["x"]), name="travel", advisors=advisors, telemetry=telemetry.options)
    run(mode, client.prompt("?", conversation_id="c-1"))


def run_context(telemetry: Telemetry, **settings: Any) -> RunContext:
    """A run whose stages a test observes by hand."""
    return RunContext(agent="travel", conversation_id="c-1", telemetry=telemetry.options, **settings)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def series(telemetry: Telemetry, metric: Metric) -> dict[tuple[Any, ...], float]:
    """The totals of a metric by the values of its labels without the agent, in the order of the registry."""
    labels = [label for label in metric.attributes if label != names.AGENT_NAME]
    points = telemetry.metric(metric.name)
    assert all(point.attributes[names.AGENT_NAME] == "travel" for point in points)
    return {tuple(point.attributes.get(label) for label in labels): total(point) for point in points}


# Reading and storing.


@pytest.mark.parametrize("mode", MODES)
def test_reading_and_storing_are_spans_that_count_messages(telemetry: Telemetry, mode: str) -> None:
    ran(telemetry, Doing(lambda request: read_and_store(request.run, request.iteration)), mode=mode)
    inside = {**WHERE, names.ITERATION_INDEX: 1}
    reading, appending = telemetry.one("search_memory"), telemetry.one("upsert_memory")
    assert attributes(reading) == {
        **inside,
        names.OPERATION_NAME: "search_memory",
        names.MEMORY_RECORD_COUNT: 3,
        names.MEMORY_LEFT_OUT: 4,
    }
    assert attributes(appending) == {
        **inside,
        names.OPERATION_NAME: "upsert_memory",
        names.MEMORY_RECORD_COUNT: 2,
        names.MEMORY_CONFLICTS: 1,
    }
    assert telemetry.parent(reading) == telemetry.parent(appending) == "before doing"


def test_outside_the_loop_an_operation_of_memory_has_no_iteration(telemetry: Telemetry) -> None:
    ran(telemetry, Doing(lambda request: read_and_store(request.run, 0), OUTSIDE))
    assert {names.ITERATION_INDEX} & {*attributes(telemetry.one("search_memory"))} == set()


def test_reading_nothing_counts_no_message_and_no_conflict(telemetry: Telemetry) -> None:
    with observe_memory(run_context(telemetry), "search_memory", 0) as reading:
        reading.read(0, 0, tuple)
    span = attributes(telemetry.one("search_memory"))
    assert (span[names.MEMORY_RECORD_COUNT], span[names.MEMORY_LEFT_OUT]) == (0, 0)
    assert names.MEMORY_CONFLICTS not in span
    assert telemetry.metric(names.MEMORY_MESSAGES.name) == []
    assert telemetry.metric(names.MEMORY_CONFLICTS_METRIC.name) == []


# Contents.


@tool
def look(at: str) -> str:
    """Look at something."""
    return at


@tool(capture=False)
def hide(at: str) -> str:
    """Hide something."""
    return at


def remembered(capture: Any, *tools: Any, mode: str = "call") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes of a reading and of an appending in a run with these tools."""
    telemetry = Telemetry(capture)
    doing = Doing(lambda request: read_and_store(request.run, request.iteration))
    client = ChatClient(ScriptedChatModel(["x"]), advisors=[doing], tools=tools, telemetry=telemetry.options)
    run(mode, client.prompt("?", conversation_id="c-1"))
    return attributes(telemetry.one("search_memory")), attributes(telemetry.one("upsert_memory"))


CALL = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": MARKER}}
QUESTION, ANSWER, RESULT = (
    {"id": "e1", "content": {"role": "user", "parts": [{"type": "text", "content": f"a question {MARKER}"}]}},
    {
        "id": "e2",
        "content": {"role": "assistant", "parts": [{"type": "text", "content": f"an answer {MARKER}"}, CALL]},
    },
    {
        "id": "e3",
        "content": {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "c1", "response": f"a result {MARKER}"}],
        },
    },
)


@pytest.mark.parametrize("mode", MODES)
def test_with_content_the_spans_have_the_query_and_the_records_of_the_conventions(mode: str) -> None:
    reading, appending = remembered("SPAN_ONLY", look, mode=mode)
    assert reading[names.MEMORY_QUERY] == f"the words {MARKER}"
    asked = {**ANSWER, "content": {"role": "assistant", "parts": [CALL]}}  # of a lookup, which has no context
    assert json.loads(reading[names.MEMORY_RECORDS]) == [QUESTION, asked, RESULT]
    assert json.loads(appending[names.MEMORY_RECORDS]) == [ANSWER, RESULT]
    assert names.MEMORY_QUERY not in appending


@pytest.mark.parametrize("capture", [None, "NO_CONTENT", "EVENT_ONLY"])
def test_without_content_on_spans_no_record_is_made(capture: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a record was made")

    monkeypatch.setattr(MemoryRecords, "__init__", never)
    telemetry = Telemetry(capture)
    read_and_store(run_context(telemetry), 1)
    assert MARKER not in str([attributes(span) for span in telemetry.spans])
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []


def test_a_tool_with_capture_disabled_keeps_the_query_the_answers_and_its_calls_out() -> None:
    reading, appending = remembered("SPAN_ONLY", look, hide)
    assert names.MEMORY_QUERY not in reading
    assert json.loads(appending[names.MEMORY_RECORDS]) == [
        {"id": "e2", "content": {"role": "assistant", "parts": [CALL]}},
        RESULT,
    ]
    reading, appending = remembered("SPAN_ONLY")  # `look` is unknown, so nobody knows whether it may be captured
    (question, answer, result) = json.loads(reading[names.MEMORY_RECORDS])
    assert question == QUESTION
    assert MARKER not in str((answer, result))


def test_records_are_redacted_and_truncated() -> None:
    def redact(name: str, value: Any) -> Any:
        return None if name == names.MEMORY_QUERY else json.loads(json.dumps(value).replace(MARKER, "-" * 300))

    reading, _ = remembered(ContentCapture("SPAN_ONLY", redact, max_bytes=256), look)
    assert MARKER not in str(reading)
    assert names.MEMORY_QUERY not in reading
    assert len(reading[names.MEMORY_RECORDS]) <= 256
    assert reading[names.CONTENT_TRUNCATED] is True
    assert json.loads(reading[names.MEMORY_RECORDS])[-1]["id"] == "e3"


@pytest.mark.parametrize("mode", MODES)
def test_the_memory_of_a_conversation_reports_what_it_reads_and_stores(mode: str) -> None:
    telemetry = Telemetry("SPAN_ONLY")
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=2)
    memory.add("c", [UserMessage("The code is 4711."), UserMessage("I like tea."), UserMessage("And cake.")])
    model = ScriptedChatModel([ToolCall("recall", {"words": "code"}), "It is 4711."])
    advisors = [MemoryAdvisor(memory, order=INSIDE)]
    client = ChatClient(model, advisors=advisors, tools=[recall_tool(memory)], telemetry=telemetry.options)
    run(mode, client.prompt("What was the code?", conversation_id="c"))
    read, looked_up = (attributes(span) for span in telemetry.named("search_memory"))
    assert texts(read) == ["I like tea.", "And cake."]
    assert names.MEMORY_QUERY not in read
    assert (looked_up[names.MEMORY_QUERY], texts(looked_up)) == ("code", ["The code is 4711."])
    log = {entry.id for entry in memory.repository.read("c").entries}
    stored = [each for span in telemetry.named("upsert_memory") for each in records(attributes(span))]
    assert {each["id"] for each in stored} <= log
    assert [each["content"]["role"] for each in stored] == ["user", "assistant", "tool", "assistant"]
    assert "4711" not in str(stored)  # `recall` may not be captured, nor what an answer repeats of it


def records(span: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(span[names.MEMORY_RECORDS])
    return found


def texts(span: dict[str, Any]) -> list[str]:
    return [part["content"] for each in records(span) for part in each["content"]["parts"]]


# Counts.


def test_messages_conflicts_and_durations_are_counted(telemetry: Telemetry) -> None:
    read_and_store(run_context(telemetry), 1)
    assert series(telemetry, names.MEMORY_MESSAGES) == {("read",): 3, ("left_out",): 4, ("stored",): 2}
    assert series(telemetry, names.MEMORY_CONFLICTS_METRIC) == {(): 1}
    durations = telemetry.metric(names.MEMORY_OPERATION_DURATION.name)
    spans = [telemetry.one(name) for name in ("search_memory", "upsert_memory")]
    assert [point.count for point in durations] == [1, 1]
    taken = [((span.end_time or 0) - (span.start_time or 0)) / 1e9 for span in spans]
    assert sorted(map(total, durations)) == pytest.approx(sorted(taken), abs=1e-8)


def test_a_failed_operation_has_an_error_and_the_run_goes_on_without_memory(telemetry: Telemetry) -> None:
    ran(telemetry, Doing(lambda request: go_without(request.run, "upsert_memory")))
    span = telemetry.one("upsert_memory")
    assert (attributes(span)[names.ERROR_TYPE], span.status.description) == ("OSError", "OSError")
    assert names.MEMORY_RECORD_COUNT not in attributes(span)
    assert series(telemetry, names.MEMORY_FAILURES) == {("upsert_memory", "OSError"): 1}
    (duration,) = telemetry.metric(names.MEMORY_OPERATION_DURATION.name)
    assert duration.attributes[names.ERROR_TYPE] == "OSError"
    assert names.ERROR_TYPE not in attributes(telemetry.one("invoke_agent"))


def test_a_failure_that_ends_the_run_names_the_operation_as_the_failed_step(telemetry: Telemetry) -> None:
    def fail(request: ChatClientRequest) -> None:
        with observe_memory(request.run, "search_memory", request.iteration):
            raise OSError(MARKER)

    with pytest.raises(OSError):
        ran(telemetry, Doing(fail))
    assert attributes(telemetry.one("invoke_agent"))[names.FAILED_STEP] == "search_memory: OSError"


# Compactions.


@pytest.mark.parametrize("mode", MODES)
def test_a_compaction_is_the_parent_of_its_summary(telemetry: Telemetry, mode: str) -> None:
    ran(telemetry, Doing(summarize), mode=mode)
    span = telemetry.one("compact_memory")
    assert attributes(span) == {
        **WHERE,
        names.ITERATION_INDEX: 1,
        names.COMPACTION_TRIGGER: "tokens",
        names.COMPACTION_STRATEGY: "tool_results,summary",
        names.COMPACTION_OUTCOME: "compacted",
        names.COMPACTION_COVERED: 12,
        names.COMPACTION_TOKENS_BEFORE: 900,
        names.COMPACTION_TOKENS_AFTER: 300,
        names.COMPACTION_TOKENS_ESTIMATED: True,
    }
    assert telemetry.parent(telemetry.one("chat summarizer")) == "compact_memory"
    assert telemetry.parent(telemetry.one("chat scripted")) == "advise doing"


def test_tokens_that_nobody_counted_are_absent(telemetry: Telemetry) -> None:
    with observe_compaction(run_context(telemetry), "turns", 0) as observed:
        observed.compacted(**{**COMPACTED, "tokens_before": None, "tokens_after": None, "estimated": False})
    found = attributes(telemetry.one("compact_memory"))
    assert {key for key in found if "tokens" in key} == set()
    assert telemetry.metric(names.COMPACTION_TOKENS_SAVED.name) == []


def test_only_the_first_model_call_after_a_compaction_says_that_the_conversation_was_compacted(
    telemetry: Telemetry,
) -> None:
    def compact_twice(request: ChatClientRequest) -> None:
        if len(telemetry.named("chat scripted")) == 1:
            summarize(request)
            summarize(request)

    model = ScriptedChatModel(["one", "two", "three"])
    client = ChatClient(model, advisors=[Doing(compact_twice)], telemetry=telemetry.options)
    for _ in range(2):
        client.prompt("?").call()
    said = [attributes(span).get(names.CONVERSATION_COMPACTED) for span in telemetry.named("chat scripted")]
    assert said == [None, True]
    summaries = [attributes(span) for span in telemetry.named("chat summarizer")]
    assert [names.CONVERSATION_COMPACTED in each for each in summaries] == [False, False]


def test_a_second_model_call_after_a_compaction_says_nothing(telemetry: Telemetry) -> None:
    request = ChatClientRequest((), run=run_context(telemetry))
    for compacts in (True, False):
        if compacts:
            summarize(request)
        with observe_model_call(request.run, ScriptedChatModel([]), request):
            pass
    calls = [attributes(span).get(names.CONVERSATION_COMPACTED) for span in telemetry.named("chat scripted")]
    assert calls == [True, None]


@pytest.mark.parametrize("outcome", ["unchanged", "superseded"])
def test_a_compaction_that_changes_nothing_has_no_event_and_marks_no_model_call(
    telemetry: Telemetry, outcome: str
) -> None:
    watching = Watching()

    def compact(request: ChatClientRequest) -> None:
        with observe_compaction(request.run, "tokens", request.iteration) as observed:
            getattr(observed, outcome)()

    ran(telemetry, Doing(compact), watching)
    assert attributes(telemetry.one("compact_memory"))[names.COMPACTION_OUTCOME] == outcome
    assert series(telemetry, names.COMPACTIONS) == {("tokens", None, outcome): 1}
    assert telemetry.events_named(names.MEMORY_COMPACTION_EVENT.name) == []
    assert "memory_compacted" not in watching.types
    assert names.CONVERSATION_COMPACTED not in attributes(telemetry.one("chat"))


def test_a_failed_summary_is_an_error_of_the_compaction_and_not_of_the_run(telemetry: Telemetry) -> None:
    def compact(request: ChatClientRequest) -> None:
        with observe_compaction(request.run, "tokens", request.iteration) as observed:
            observed.failed(ValueError(MARKER), "summary")

    ran(telemetry, Doing(compact))
    span = telemetry.one("compact_memory")
    assert (attributes(span)[names.ERROR_TYPE], span.status.description) == ("ValueError", "ValueError")
    assert attributes(span)[names.COMPACTION_OUTCOME] == "failed"
    assert series(telemetry, names.COMPACTIONS) == {("tokens", "summary", "failed"): 1}
    (event,) = telemetry.events_named(names.MEMORY_COMPACTION_EVENT.name)
    assert (event.attributes[names.COMPACTION_OUTCOME], event.attributes[names.ERROR_TYPE]) == ("failed", "ValueError")
    assert names.ERROR_TYPE not in attributes(telemetry.one("invoke_agent"))


def test_an_error_that_leaves_a_compaction_fails_it(telemetry: Telemetry) -> None:
    with pytest.raises(OSError), observe_compaction(run_context(telemetry), "tokens", 1):
        raise OSError(MARKER)
    assert series(telemetry, names.COMPACTIONS) == {("tokens", None, "failed"): 1}


def test_a_compaction_is_counted_with_the_tokens_that_it_saves(telemetry: Telemetry) -> None:
    request = ChatClientRequest((), run=run_context(telemetry))
    summarize(request)
    summarize(request, tokens_after=1000)
    assert series(telemetry, names.COMPACTIONS) == {("tokens", "tool_results,summary", "compacted"): 2}
    (saved,) = telemetry.metric(names.COMPACTION_TOKENS_SAVED.name)
    assert (saved.count, saved.sum) == (2, 600)


def test_a_compaction_has_a_log_based_event_in_its_span(telemetry: Telemetry) -> None:
    ran(telemetry, Doing(summarize))
    (event,) = telemetry.events_named(names.MEMORY_COMPACTION_EVENT.name)
    span = telemetry.one("compact_memory")
    assert (event.trace_id, event.span_id) == hex_ids(span)
    run_id = attributes(telemetry.one("invoke_agent"))[names.RUN_ID]
    assert event.attributes == {**attributes(span), names.RUN_ID: run_id}


def test_the_number_of_names_of_triggers_and_strategies_is_limited(telemetry: Telemetry) -> None:
    request = run_context(telemetry)
    for number in range(100):
        with observe_compaction(request, f"trigger-{number}", 0) as observed:
            observed.compacted(**{**COMPACTED, "strategy": f"strategy-{number}"})
    for label in (names.COMPACTION_TRIGGER, names.COMPACTION_STRATEGY):
        shown = {point.attributes[label] for point in telemetry.metric(names.COMPACTIONS.name)}
        assert len(shown) == names.MAX_LABEL_VALUES + 1
        assert names.OTHER in shown


@pytest.mark.parametrize("name", ["a" * 10_000, "a\nb", "a\x1b[31m", "\udcff"])
def test_an_unprintable_name_of_a_trigger_or_strategy_is_replaced(telemetry: Telemetry, name: str) -> None:
    with observe_compaction(run_context(telemetry), name, 0) as observed:
        observed.compacted(**{**COMPACTED, "strategy": name})
    span = attributes(telemetry.one("compact_memory"))
    assert span[names.COMPACTION_TRIGGER] == span[names.COMPACTION_STRATEGY] == names.OTHER
    assert set(series(telemetry, names.COMPACTIONS)) == {(names.OTHER, names.OTHER, "compacted")}


# Missing results.


def test_missing_results_are_counted_by_what_is_known_of_them(telemetry: Telemetry) -> None:
    ran(telemetry, Doing(lambda request: observe_missing_results(request.run, 2, 1, request.iteration)))
    assert series(telemetry, names.MISSING_RESULTS) == {("not_run",): 2, ("unknown",): 1}
    (event,) = telemetry.events_named(names.MISSING_RESULTS_EVENT.name)
    assert event.severity == "WARN"
    assert (event.attributes[names.MISSING_RESULTS_NOT_RUN], event.attributes[names.MISSING_RESULTS_UNKNOWN]) == (2, 1)
    assert (event.trace_id, event.span_id) == hex_ids(telemetry.one("before doing"))


def test_what_a_finalizer_reports_is_counted_by_the_next_collection_of_metrics(telemetry: Telemetry) -> None:
    abandoned = run_context(telemetry)
    with in_finalizer():
        observe_missing_results(abandoned, 2, 1, 0)
        memory_failed(abandoned, "upsert_memory", OSError(MARKER))
        assert deferred._measurements.qsize() == 2
    assert series(telemetry, names.MISSING_RESULTS) == {("not_run",): 2, ("unknown",): 1}
    assert series(telemetry, names.MEMORY_FAILURES) == {("upsert_memory", "OSError"): 1}


# Typed events.


@pytest.mark.parametrize("order", [INSIDE, OUTSIDE])
def test_listeners_are_told_what_memory_did(telemetry: Telemetry, order: int) -> None:
    watching = Watching()
    ran(telemetry, Remembering(order), watching)
    found = [event for event in watching.events if "memory" in event.type or "missing" in event.type]
    check_sequence(watching.events)
    assert [type(event) for event in found] == [MissingResultsAnswered, MemoryRead, MemoryStored, MemoryCompacted]
    missing, read, stored, compacted = found
    assert isinstance(missing, MissingResultsAnswered) and (missing.not_run, missing.unknown) == (2, 1)
    assert isinstance(read, MemoryRead) and (read.messages, read.left_out) == (3, 4)
    assert isinstance(stored, MemoryStored) and stored.messages == 2
    assert isinstance(compacted, MemoryCompacted) and compacted.trigger == "tokens"
    assert {name: getattr(compacted, name) for name in COMPACTED} == COMPACTED
    assert {event.iteration for event in found} == {1 if order == INSIDE else 0}
    span_ids = [hex_ids(telemetry.named(name)[0])[1] for name in ("search_memory", "upsert_memory", "compact_memory")]
    assert [read.span_id, stored.span_id, compacted.span_id] == span_ids


def test_a_listener_that_raises_ends_a_compaction_that_is_stored_already(telemetry: Telemetry) -> None:
    with pytest.raises(KeyError):
        ran(telemetry, Doing(summarize), Watching(then=raising("memory_compacted")))
    span = attributes(telemetry.one("compact_memory"))
    assert (span[names.COMPACTION_OUTCOME], span[names.ERROR_TYPE]) == ("compacted", "KeyError")


# Off, detail, and content.


def test_nothing_is_built_if_nothing_listens() -> None:
    nobody = RunContext(telemetry=TelemetryOptions())
    assert observe_memory(nobody, "search_memory", 1) is OFF
    assert observe_compaction(nobody, "tokens", 1) is OFF
    observe_missing_results(nobody, 1, 1, 1)
    memory_failed(nobody, "search_memory", OSError())
    Remembering().before(ChatClientRequest((), run=nobody))
    assert not nobody.telemetry.is_compacted


@pytest.mark.parametrize("detail", DETAILS)
def test_memory_has_spans_wherever_iterations_have_or_it_fails_and_the_same_metrics_with_each_detail(
    detail: Any,
) -> None:
    telemetry = Telemetry(detail=detail)
    ran(telemetry, Remembering())
    found = [(span.name, names.ERROR_TYPE in attributes(span)) for span in telemetry.spans if "_memory" in span.name]
    failed = [("search_memory", True), ("upsert_memory", True)]
    whole = [("search_memory", False), ("upsert_memory", False), ("compact_memory", False), ("compact_memory", True)]
    assert sorted(found) == sorted(failed if detail == "run" else [*failed, *whole])
    assert series(telemetry, names.COMPACTIONS) == {
        ("tokens", "tool_results,summary", "compacted"): 1,
        ("tokens", "summary", "failed"): 1,
    }
    assert attributes(telemetry.one("chat scripted"))[names.CONVERSATION_COMPACTED] is True
    assert len(telemetry.events_named(names.MEMORY_COMPACTION_EVENT.name)) == 2


@pytest.mark.parametrize("mode", MODES)
def test_memory_exports_no_content(
    mode: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with Wiretap(caplog, capsys) as wire:
        client = ChatClient(ScriptedChatModel(["x"]), advisors=[Remembering()], telemetry=wire.telemetry.options)
        wire.run(client.prompt(MARKER), mode)
        wire.check()
