"""What a tool search reports: its span, metrics and events, and no content without capture."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from tests.captured import Telemetry, total
from tests.events.watching import Watching, check_sequence
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.observe.closed_list import assert_consistent
from tests.observe.exported import Wiretap
from tests.search.deciding import USAGE, DecidingModel
from tests.search.searching import (
    ANIMALS,
    SEARCH,
    CountingIndex,
    client,
    feeding,
    feeds,
    looks,
    offered,
    searching,
    zoo,
)
from traced_tools import (
    Advisor,
    AuditAdvisor,
    AuditTrail,
    ChatClient,
    LoopLimits,
    ToolCall,
    ToolSearchToolCallingAdvisor,
    tool,
)
from traced_tools.audit import AuditReader
from traced_tools.core.enums import DETAILS
from traced_tools.observe import ToolsDiscovered, names
from traced_tools.observe.names.registry_types import Metric
from traced_tools.observe.off import OFF
from traced_tools.observe.settings import EARLIER, GENAI_CONVENTIONS
from traced_tools.run.context import RunContext
from traced_tools.search import DecisionToolIndex, RegexToolIndex
from traced_tools.search.catalogue import estimate_tokens
from traced_tools.search.telemetry import observe_discovery, observe_tool_search, observe_withheld_tools
from traced_tools.testing import ScriptedChatModel

LABELS = {names.TOOL_SEARCH_INDEX: "regex", names.AGENT_NAME: "assistant"}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def points(telemetry: Telemetry, metric: Metric) -> list[Any]:
    found = telemetry.metric(metric.name)
    assert all(point.attributes == LABELS for point in found)
    return found


def ran(telemetry: Telemetry, *turns: Any, mode: str = "call", **settings: Any) -> Any:
    asking, model = client(settings.pop("advisor", searching()), *turns, telemetry=telemetry.options, **settings)
    run(mode, asking.prompt("?", conversation_id="c-1"))
    return model


# The span.


@pytest.mark.parametrize("mode", MODES)
def test_a_search_is_a_span_below_the_call_of_the_search_tool(telemetry: Telemetry, mode: str) -> None:
    ran(telemetry, looks("zebra", max_results=3), looks("zebra yak", max_results=2), "done", mode=mode)
    first, second = telemetry.named("retrieval")
    assert first.kind is SpanKind.INTERNAL
    assert telemetry.parent(first) == telemetry.parent(second) == f"execute_tool {SEARCH}"
    common = {
        names.OPERATION_NAME: "retrieval",
        names.AGENT_NAME: "assistant",
        names.CONVERSATION_ID: "c-1",
        names.TOOL_SEARCH_INDEX: "regex",
    }
    counts = {names.RETRIEVAL_TOP_K: 3, names.TOOL_SEARCH_RESULTS: 1, names.TOOL_SEARCH_DISCOVERED: 1}
    assert attributes(first) == {**common, names.ITERATION_INDEX: 1, **counts}
    counts = {names.RETRIEVAL_TOP_K: 2, names.TOOL_SEARCH_RESULTS: 2, names.TOOL_SEARCH_DISCOVERED: 1}
    assert attributes(second) == {**common, names.ITERATION_INDEX: 2, **counts}
    assert_consistent(telemetry)


def test_a_search_is_below_the_advice_of_the_advisors_that_let_it_pass(telemetry: Telemetry) -> None:
    class Passing(Advisor):
        name, order = "passing", 400

        async def advise_tool(self, call: Any, call_next: Any) -> Any:
            return await call_next(call)

    ran(telemetry, looks("zebra"), "done", advisors=[Passing()])
    assert telemetry.parent(telemetry.one("retrieval")) == "advise_tool passing"


def test_the_earlier_conventions_name_the_limit_of_a_search_otherwise(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GENAI_CONVENTIONS, EARLIER)
    ran(telemetry, looks("zebra", max_results=3), "done")
    found = attributes(telemetry.one("retrieval"))
    assert found[names.REQUEST_TOP_K] == 3.0
    assert names.RETRIEVAL_TOP_K not in found


@pytest.mark.parametrize("mode", MODES)
def test_a_search_that_fails_fails_its_span_and_the_tools_and_not_the_run(telemetry: Telemetry, mode: str) -> None:
    ran(telemetry, looks("zebra"), "done", mode=mode, advisor=searching(CountingIndex(failing_searches=1)))
    for name in ("retrieval", f"execute_tool {SEARCH}"):
        span = telemetry.one(name)
        assert (attributes(span)[names.ERROR_TYPE], span.status.description) == ("ConnectionError", "ConnectionError")
    assert names.TOOL_SEARCH_RESULTS not in attributes(telemetry.one("retrieval"))
    assert names.ERROR_TYPE not in attributes(telemetry.one("invoke_agent"))
    assert [total(each) for each in points(telemetry, names.TOOL_SEARCHES)] == [1]


def test_the_hooks_of_the_search_are_spans(telemetry: Telemetry) -> None:
    ran(telemetry, looks("zebra"), "done")
    for hook in ("initialize", "before", "after", "finalize", "advise"):
        assert telemetry.named(f"{hook} tool_search")


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_decides_about_tools_is_asked_below_the_search_and_counts_towards_the_run(
    telemetry: Telemetry, mode: str
) -> None:
    search = ToolSearchToolCallingAdvisor(index=DecisionToolIndex(DecidingModel(), RegexToolIndex()))
    asking, model = client(search, looks("zebra"), "done", telemetry=telemetry.options)
    response = run(mode, asking.prompt("?"))
    assert offered(model.requests[1]) == [SEARCH, "feed_zebra"]
    assert telemetry.parent(telemetry.one("chat decider")) == "retrieval"
    assert attributes(telemetry.one("retrieval"))[names.TOOL_SEARCH_INDEX] == "decision"
    assert response.usage == USAGE


@pytest.mark.parametrize("detail", DETAILS)
def test_a_search_has_a_span_with_any_detail(detail: Any) -> None:
    telemetry = Telemetry(detail=detail)
    ran(telemetry, looks("zebra"), "done")
    assert telemetry.parent(telemetry.one("retrieval")) == f"execute_tool {SEARCH}"
    assert_consistent(telemetry)


def test_the_kind_of_search_is_one_that_openinference_knows() -> None:
    telemetry = Telemetry(openinference=True)
    ran(telemetry, looks("zebra"), "done")
    assert attributes(telemetry.one("retrieval"))[names.OPENINFERENCE_KIND] == "RETRIEVER"


# The metrics.


@pytest.mark.parametrize("mode", MODES)
def test_searches_and_discoveries_are_counted(telemetry: Telemetry, mode: str) -> None:
    turns = [looks("zebra"), [looks("zebra"), feeds("owl"), ToolCall("feed_dragon")], "done"]
    ran(telemetry, *turns, mode=mode)
    assert [total(each) for each in points(telemetry, names.TOOL_SEARCHES)] == [2]
    assert [total(each) for each in points(telemetry, names.TOOLS_DISCOVERED)] == [2]


def test_withheld_tools_and_saved_tokens_are_measured_for_each_model_call(telemetry: Telemetry) -> None:
    model = ran(telemetry, looks("zebra"), "done")
    assert [offered(request) for request in model.requests] == [[SEARCH], [SEARCH, "feed_zebra"]]
    [withheld], [saved] = points(telemetry, names.TOOLS_WITHHELD), points(telemetry, names.TOOL_TOKENS_SAVED)
    assert (withheld.count, withheld.sum) == (2, 70 + 69)
    everything = estimate_tokens([each.definition for each in zoo(*ANIMALS)])
    sent = sum(estimate_tokens(request.tools) for request in model.requests)
    assert (saved.count, saved.sum) == (2, 2 * everything - sent)


def test_no_tokens_are_saved_if_the_search_tool_takes_more_than_the_tools(telemetry: Telemetry) -> None:
    ran(telemetry, "done", tools=[feeding("ant")])
    [saved] = points(telemetry, names.TOOL_TOKENS_SAVED)
    assert (saved.count, saved.sum) == (1, 0)


def test_a_session_that_restores_what_it_knew_counts_no_discovery(telemetry: Telemetry) -> None:
    advisor = searching()
    ran(telemetry, looks("zebra"), "done", advisor=advisor)
    ran(telemetry, "done", advisor=advisor)
    assert [total(each) for each in points(telemetry, names.TOOLS_DISCOVERED)] == [1]


def test_a_run_that_ends_at_a_limit_measures_no_withheld_tools_for_its_last_call(telemetry: Telemetry) -> None:
    ran(telemetry, looks("zebra"), "done", limits=LoopLimits(max_iterations=1))
    [withheld] = points(telemetry, names.TOOLS_WITHHELD)
    assert withheld.count == 1


def test_the_number_of_kinds_of_indexes_is_limited(telemetry: Telemetry) -> None:
    run_context = RunContext(telemetry=telemetry.options)
    for number in range(100):
        observe_withheld_tools(run_context, f"kind-{number}", 1, lambda: 1)
    kinds = {point.attributes[names.TOOL_SEARCH_INDEX] for point in telemetry.metric(names.TOOLS_WITHHELD.name)}
    assert len(kinds) == names.MAX_LABEL_VALUES + 1
    assert names.OTHER in kinds


# The event.


@pytest.mark.parametrize("mode", MODES)
def test_listeners_receive_which_tools_were_discovered(telemetry: Telemetry, mode: str) -> None:
    watching = Watching()
    ran(telemetry, looks("zebra"), [feeds("owl"), looks("zebra")], "done", mode=mode, advisors=[watching])
    check_sequence(watching.events)
    found = [event for event in watching.events if isinstance(event, ToolsDiscovered)]
    assert [(each.tools, each.index, each.searched, each.iteration) for each in found] == [
        (("feed_zebra",), "regex", True, 1),
        (("feed_owl",), "regex", False, 2),
    ]


# The audit trail.


def test_the_audit_trail_records_searches_as_calls(tmp_path: Any) -> None:
    with AuditTrail(tmp_path / "audit.db") as trail:
        asking, _ = client(searching(), looks("zebra"), feeds("zebra"), "done", advisors=[AuditAdvisor(trail)])
        response = asking.prompt("?").call()
    calls = AuditReader(tmp_path / "audit.db").run(response.run_id).calls
    intents = [call.intent for call in calls if call.intent is not None and call.outcome is not None]
    assert [intent.fields["tool"] for intent in intents] == [SEARCH, "feed_zebra"]


# Content.


@pytest.mark.parametrize("mode", MODES)
def test_the_query_and_what_was_found_are_captured_with_content(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_ONLY")
    ran(telemetry, looks("zebra"), "done", mode=mode)
    found = attributes(telemetry.one("retrieval"))
    assert found[names.RETRIEVAL_QUERY] == "zebra"
    [document] = json.loads(found[names.RETRIEVAL_DOCUMENTS])
    assert document["id"] == "feed_zebra"
    assert document["score"] > 0
    arguments = attributes(telemetry.one(f"execute_tool {SEARCH}"))[names.TOOL_CALL_ARGUMENTS]
    assert json.loads(arguments) == {"query": "zebra"}
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_a_search_exports_no_content(
    mode: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    class Quoting(CountingIndex):
        def search(self, query: str, max_results: int = 5) -> Any:
            if len(self.searched) == 1:
                super().search(query, max_results)
                raise LookupError(query)
            return super().search(query, max_results)

    @tool
    def quiet(text: str) -> str:
        """Return a text."""
        return text

    with Wiretap(caplog, capsys) as wire:
        turns = [looks(f"zebra {MARKER}"), looks(MARKER), looks("zebra"), "done"]
        asking, _ = client(searching(Quoting()), *turns, tools=[*zoo(), quiet], telemetry=wire.telemetry.options)
        wire.run(asking.prompt(MARKER, params={"session_id": MARKER}), mode)
        wire.check()


# Nothing, if nothing listens or nothing is searched.


def test_nothing_is_built_if_nothing_listens() -> None:
    nobody = RunContext()

    def never() -> int:
        raise AssertionError("tokens were counted")

    [search] = searching().own_tools
    assert observe_tool_search(nobody, "regex", "?", 1, 1, search) is OFF
    observe_discovery(nobody, "regex", ["a"], 1)
    observe_withheld_tools(nobody, "regex", 1, never)


def test_a_run_without_a_tool_search_emits_nothing_of_it(telemetry: Telemetry) -> None:
    model = ScriptedChatModel([feeds("ant"), "done"])
    ChatClient(model, tools=zoo("ant"), telemetry=telemetry.options).prompt("?").call()
    assert telemetry.named("retrieval") == []
    assert [point.name for point in telemetry.metrics if ".tool_search." in point.name] == []
