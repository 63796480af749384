"""What the audit advisor puts on record of a call."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.audit.draft_trails import KeptTrail, auditing, client_of, person_of
from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from tests.observe.runs import adds
from tests.sample_tools import add, fail
from traced_tools import Advisor, ApprovalAdvisor, Approve, ChatClient, ToolCall, ToolContext, ToolResult, tool
from traced_tools.audit.digests import AuditKey
from traced_tools.audit.records import Content
from traced_tools.audit.writing.record_builder import RecordMaker
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.core.tool_definition import definition_digest
from traced_tools.loop import TOOL_LOOP_ORDER
from traced_tools.models.base import ChatRequest, ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation, tool_callbacks
from traced_tools.tools.invocation import CallNext


@pytest.fixture
def trail() -> KeptTrail:
    return KeptTrail()


@pytest.mark.parametrize("mode", MODES)
def test_the_intent_is_on_record_before_the_tool_starts(trail: KeptTrail, mode: str) -> None:
    seen: list[list[str]] = []

    def act() -> str:
        """Act."""
        seen.append([draft.kind for draft in trail.drafts])
        return "done"

    run(mode, client_of(trail, [ToolCall("act", ""), "x"], tools=[act]).prompt("?"))
    assert seen == [["intent", "decision"]]
    assert trail.stories() == [["intent act", "allowed", "ok"]]


@pytest.mark.parametrize("mode", MODES)
def test_the_records_of_a_call_lead_to_its_run_its_span_and_its_conversation(trail: KeptTrail, mode: str) -> None:
    telemetry = Telemetry()
    client = client_of(
        trail, [[adds(1, 1), ToolCall("fail", "{}", id="f")], "x"], name="travel", telemetry=telemetry.options
    )
    response = run(mode, client.prompt("?", conversation_id="c-1"))
    for name, place in (("add", 0), ("fail", 1)):
        span = telemetry.one(f"execute_tool {name}")
        context, attributes = span.get_span_context(), span.attributes or {}
        assert context is not None
        for draft in trail.drafts:
            subject = draft.subject
            assert subject is not None
            if subject.tool == name:
                assert (subject.agent, subject.run_id, subject.conversation_id) == ("travel", response.run_id, "c-1")
                assert (subject.iteration, subject.batch_index) == (1, place)
                assert subject.call_id == attributes[names.TOOL_CALL_ID]
                assert subject.trace_id == f"{context.trace_id:032x}"
                assert subject.span_id == f"{context.span_id:016x}"


class Spoken(ScriptedChatModel):
    """Says which model it is, and numbers its answers."""

    def call(self, request: ChatRequest) -> ChatResponse:
        answer = super().call(request)
        return ChatResponse(answer.message, model="scripted-2", id=f"answer-{len(self.requests)}")


def test_the_intent_records_the_agent_the_tool_and_the_arguments(trail: KeptTrail) -> None:
    given = '{"b": 2, "a": 1, "made up": 3}'
    client = ChatClient(
        Spoken([[ToolCall("add", given), adds(1, 1)], adds(3, 4), "x"]), tools=[add], advisors=[auditing(trail)]
    )
    client.prompt("?").call()
    first, second, third = sorted(
        trail.of("intent"), key=lambda each: (each.subject.iteration, each.subject.batch_index)
    )
    (offered,) = tool_callbacks(add)
    assert first.fields == {
        "source": "local",
        "batch_size": 2,
        "model": "scripted-2",
        "provider": "scripted",
        "response_id": "answer-1",
        "definition_digest": definition_digest(offered.definition),
        "argument_names": ["a", "b"],
        "unknown_arguments": 1,
    }
    assert first.contents == {"arguments": Content(given, may_be_stored=True, is_json=True)}
    assert "unknown_arguments" not in second.fields
    assert (third.fields["response_id"], third.fields["batch_size"]) == ("answer-2", 1)


def test_times_are_those_of_the_events_in_order(trail: KeptTrail) -> None:
    before = datetime.now(UTC)
    client_of(trail, [adds(1, 1), "x"]).prompt("?").call()
    times = [draft.time for draft in trail.drafts]
    assert times == sorted(times)
    assert all(before.timestamp() - 0.001 <= time / 1e9 <= datetime.now(UTC).timestamp() for time in times)


def test_the_outcome_records_the_result_the_attempts_and_the_duration(
    trail: KeptTrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
    attempts = iter([ConnectionError(MARKER), ConnectionError(MARKER), None])

    @tool(retries=2)
    def wobbly() -> str:
        """Fail twice."""
        if (error := next(attempts)) is not None:
            raise error
        return "after all"

    client_of(trail, [[ToolCall("wobbly", ""), ToolCall("fail", "")], "x"], tools=[wobbly, fail]).prompt("?").call()
    good, bad = sorted(trail.of("outcome"), key=lambda each: each.fields["outcome"], reverse=True)
    assert (good.fields["outcome"], good.fields["attempts"]) == ("ok", 3)
    assert good.contents == {"result": Content("after all", may_be_stored=True, is_json=True)}
    assert (bad.fields["outcome"], bad.fields["error_type"], bad.fields["attempts"]) == ("error", "RuntimeError", 1)
    assert all(each.fields["duration"] >= 0 for each in (good, bad))


# Which contents may be stored.


def test_contents_of_an_unknown_tool_or_with_capture_disabled_may_not_be_stored(trail: KeptTrail) -> None:
    @tool(capture=False)
    def hush(secret: str) -> str:
        """Say nothing."""
        return secret

    calls = [ToolCall("hush", {"secret": "a"}), ToolCall("hush", {}), ToolCall("hsuh", {"secret": "a"}), adds(1, 1)]
    client_of(trail, [calls, "x"], tools=[hush, add]).prompt("?").call()
    may_be_stored = {
        (each.kind, each.subject.batch_index, name): content.may_be_stored
        for each in trail.drafts
        for name, content in each.contents.items()
    }
    assert may_be_stored == {
        ("intent", 0, "arguments"): False,
        ("intent", 0, "requested_arguments"): False,
        ("outcome", 0, "result"): False,
        ("intent", 1, "arguments"): False,
        ("intent", 2, "arguments"): False,
        ("intent", 2, "requested_name"): True,
        ("intent", 3, "arguments"): True,
        ("intent", 3, "requested_arguments"): True,
        ("outcome", 3, "result"): True,
    }


class Referring:
    """A tool whose schema says by reference, and in branches, what its arguments are."""

    definition = ToolDefinition(
        name="referring",
        input_schema={
            "$ref": "#/$defs/whole",
            "$defs": {
                "whole": {"type": "object", "properties": {"city": {}}, "anyOf": [{"properties": {"country": {}}}, {}]}
            },
        },
    )
    metadata = ToolMetadata(source="weather-server")

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        return ""


def test_the_intent_lists_arguments_of_the_schema_and_counts_unknown_ones(trail: KeptTrail) -> None:
    asked = ToolCall("referring", {"city": 1, "country": 2, MARKER: 3, "$defs": 4})
    client_of(trail, [asked, "x"], tools=[Referring()]).prompt("?").call()
    fields = trail.one("intent").fields
    assert (fields["argument_names"], fields["unknown_arguments"]) == (["city", "country"], 2)
    assert fields["source"] == "weather-server"


class Reasoning(Advisor):
    """Takes a reason from somewhere, and gives the tool other arguments."""

    name = "reasoning"

    def __init__(self, order: int = TOOL_LOOP_ORDER + 50) -> None:
        self.order = order

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.replace(arguments={"a": 1, "b": 3}, intent="because"))


def test_a_reason_that_an_advisor_further_out_knows_is_on_record_with_the_arguments_that_are_left(
    trail: KeptTrail,
) -> None:
    client_of(trail, [adds(1, 2), "x"], Reasoning()).prompt("?").call()
    contents = trail.one("intent").contents
    assert contents["reason"] == Content("because", may_be_stored=True)
    assert contents["arguments"].text == '{"a":1,"b":3}'
    assert trail.stories() == [["intent add", "allowed", "ok"]]


def pay(to: str, amount: int, note: str = "") -> str:
    """Pay somebody."""
    return "paid"


@pytest.mark.parametrize("mode", MODES)
def test_the_intent_has_what_runs_and_beside_it_what_the_model_wrote_where_that_means_something_else(
    trail: KeptTrail, mode: str
) -> None:
    written = [
        '{"to": "Eve", "amount": "9000"}',
        '```json\n{"to": "Eve", "amount": 1, "note": ""}\n```',
        '{ "note":"", "amount": 2.0, "to": "Eve" }',
    ]
    run(mode, client_of(trail, [[ToolCall("pay", text) for text in written], "x"], tools=[pay]).prompt("?"))
    intents = sorted(trail.of("intent"), key=lambda each: each.subject.batch_index)
    assert [each.contents["arguments"].text for each in intents] == [
        f'{{"amount":{amount},"note":"","to":"Eve"}}' for amount in (9000, 1, 2)
    ]
    maker = RecordMaker(AuditKey(b"a key of the tests"), "full", None, {})
    requested = [maker.fields(each, 0).get("requested_arguments", {}).get("text") for each in intents]
    assert requested == [*written[:2], None]
    assert [each.contents for each in trail.of("decision")] == [{}, {}, {}]


def test_what_the_model_wrote_is_recorded_beside_what_an_advisor_further_out_made_of_it(trail: KeptTrail) -> None:
    client_of(trail, [adds(1, 2), "x"], Reasoning()).prompt("?").call()
    assert trail.one("intent").contents["requested_arguments"].text == '{"a": 1, "b": 2}'


def test_no_content_is_in_a_repr(trail: KeptTrail) -> None:
    calls = [ToolCall("add", {MARKER: MARKER}), ToolCall(MARKER, MARKER), ToolCall("fail", {"reason": MARKER})]
    client = client_of(trail, [calls, MARKER])
    client.prompt(MARKER).call()
    assert len(trail.drafts) == 8
    assert MARKER not in everything([repr(trail.drafts), repr(auditing(trail)), repr(client)])


@pytest.mark.parametrize(
    "arguments", ["", "null", "[1]", '"a"', "{", '{"a": 1, "a": 2}', "[" * 100_000, '{"\\ud800": 1}', "1e999"]
)
def test_arguments_that_are_no_object_or_no_json_are_on_record_all_the_same(trail: KeptTrail, arguments: str) -> None:
    client_of(trail, [ToolCall("add", arguments), "x"]).prompt("?").call()
    intent = trail.one("intent")
    assert intent.contents["arguments"].text == arguments
    assert "definition_digest" in intent.fields
    assert set(intent.fields.get("argument_names", ())) <= {"a"}


class Changes(Advisor):
    """Runs the tool with other arguments."""

    name, order = "changes", 450

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.replace(arguments={"a": 40, "b": 2}))


@pytest.mark.parametrize("mode", MODES)
def test_the_decision_has_the_arguments_that_advice_further_in_put_in_the_models_place(
    trail: KeptTrail, mode: str
) -> None:
    response = run(mode, client_of(trail, [adds(1, 1), "x"], Changes()).prompt("?"))
    assert response.tool_results[0].value == 42
    intent, decision = trail.one("intent"), trail.one("decision")
    assert intent.contents["arguments"].text == '{"a":1,"b":1}'
    assert decision.contents["arguments"] == Content('{"a":40,"b":2}', may_be_stored=True, is_json=True)


@tool(requires_approval=True)
def buy(amount: int) -> str:
    """Buy."""
    return f"bought {amount}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("resumes", [False, True], ids=["in place", "resumed"])
def test_arguments_that_somebody_approved_instead_are_on_record_under_the_id_of_the_call(
    trail: KeptTrail, mode: str, resumes: bool
) -> None:
    edited = Approve(by="ana", arguments={"amount": 3})
    asking = [] if resumes else [ApprovalAdvisor(lambda request: edited)]
    client = client_of(trail, [ToolCall("buy", {"amount": 5}, id="b"), "done"], *asking, tools=[buy])
    response = run(mode, client.prompt("?"))
    if response.state is not None:
        response = run(mode, client.resume(response.state, {"b": edited}))
    [result] = response.tool_results
    assert (result.call_id, result.content) == ("b", "bought 3")
    intent, decision, outcome = trail.drafts[-3:]
    assert [each.subject and each.subject.call_id for each in (intent, decision, outcome)] == ["b"] * 3
    assert (decision.fields["decision"], person_of(decision)) == ("approved", "ana")
    assert intent.contents["arguments"].text == '{"amount":5}'
    assert decision.contents["arguments"].text == '{"amount":3}'


def test_the_decision_says_nothing_of_arguments_that_stay_the_models(trail: KeptTrail) -> None:
    run("call", client_of(trail, [adds(1, 1), "x"]).prompt("?"))
    assert trail.one("decision").contents == {}


class Twice(Advisor):
    """Runs the tool, and then again with other arguments."""

    def __init__(self, order: int) -> None:
        self.name, self.order = "twice", order

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        await call_next(call)
        return await call_next(call.replace(arguments={"a": 40, "b": 2}))


@pytest.mark.parametrize("order", [350, 450])
@pytest.mark.parametrize("mode", MODES)
def test_what_a_tool_is_run_with_a_second_time_is_on_record(trail: KeptTrail, order: int, mode: str) -> None:
    run(mode, client_of(trail, [adds(1, 1), "x"], Twice(order)).prompt("?"))
    assert [draft.kind for draft in trail.drafts] == ["intent", "decision", "outcome", "decision", "outcome"]
    first, second = trail.of("decision")
    assert first.contents == {}
    assert second.contents == {"arguments": Content('{"a":40,"b":2}', may_be_stored=True, is_json=True)}
