"""Calls with additional arguments: the reason on record, advisors, limits, approvals, runs by hand and resumed."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from opentelemetry import trace
from pydantic import BaseModel

from tests.audit.draft_trails import KeptTrail, auditing
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    ApprovalRequest,
    Approve,
    AssistantMessage,
    CacheToolAdvisor,
    ChatClient,
    ChatClientResponse,
    LoopLimits,
    Message,
    Policy,
    PolicyAdvisor,
    Reject,
    RetryToolAdvisor,
    Rule,
    ToolCall,
    ToolResult,
    UserMessage,
    tool,
)
from traced_tools.core import ToolAnnotations, ToolDefinition, ToolMetadata
from traced_tools.errors import InvalidArguments
from traced_tools.models import ChatResponse
from traced_tools.observe import ToolDecided, names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, ToolCallingManager, ToolInvocation, augmented
from traced_tools.tools.invocation import CallNext


class Thinking(BaseModel):
    confidence: Literal["low", "high"] = "high"
    inner_thought: str | None
    second: str = "not the reason"


DONE: list[str] = []
HEARD: list[str | None] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()
    HEARD.clear()


@tool(annotations=ToolAnnotations(read_only=True))
def look(place: str, days: int = 1) -> str:
    """Look at a place."""
    DONE.append(place)
    return f"seen {place}"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    DONE.append(f"paid {amount}")
    return f"paid {amount}"


@tool(capture=False)
def quiet(place: str) -> str:
    """Look in secret."""
    return place


def hear(event: Any) -> None:
    HEARD.append(event.arguments.inner_thought)


TOOLS = augmented([look, pay, quiet], arguments=Thinking, on_arguments=hear)


def asks(name: str = "look", thought: str | None = "to see", id: str = "c", **arguments: Any) -> ToolCall:
    given = arguments or {"pay": {"amount": 5}}.get(name, {"place": "Oslo"})
    return ToolCall(name, {"inner_thought": thought, **given}, id=id)


def client(*turns: Any, **settings: Any) -> ChatClient:
    return ChatClient(ScriptedChatModel([*turns, "done"]), **{"tools": TOOLS, **settings})


def called(mode: str, *calls: ToolCall, **settings: Any) -> ChatClientResponse:
    return run(mode, client(*calls, **settings).prompt("?"))


class Seeing(Advisor):
    """Keeps the calls that it sees, and may change their arguments."""

    name, order = "seeing", 400

    def __init__(self, change: Any = None) -> None:
        self.calls: list[ToolInvocation] = []
        self.change = change

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        self.calls.append(call)
        return await call_next(call if self.change is None else call.replace(arguments=self.change))


# The reason.


class Untold(BaseModel):
    level: int = 1
    tags: list[str] = []


@pytest.mark.parametrize(
    ("model", "given", "reason"),
    [
        (Thinking, {"inner_thought": "why"}, "why"),
        (Thinking, {"inner_thought": None}, None),
        (Thinking, {"inner_thought": " \n"}, None),
        (Untold, {"tags": ["a"]}, '{"level":1,"tags":["a"]}'),
        (Untold, {}, '{"level":1,"tags":[]}'),
    ],
)
def test_the_reason_is_the_first_text_or_else_all_additional_arguments(
    model: type[BaseModel], given: dict[str, Any], reason: str | None
) -> None:
    seeing = Seeing()
    call = ToolCall("look", {"place": "Oslo", **given})
    called("call", call, tools=augmented(look, arguments=model), advisors=[seeing])
    assert [each.intent for each in seeing.calls] == [reason]


def test_the_reason_of_a_tool_that_is_augmented_twice_is_that_of_the_outer_augmentation_if_it_has_one() -> None:
    class Outer(BaseModel):
        aim: str | None = None

    seeing = Seeing()
    tools = augmented(TOOLS, arguments=Outer)
    call = asks(place="Oslo", aim="outside")
    called("call", call, asks(), tools=tools, advisors=[seeing])
    assert [each.intent for each in seeing.calls] == ["outside", "to see"]


@pytest.mark.parametrize("mode", MODES)
def test_advisors_see_the_arguments_of_the_tool_and_the_reason(mode: str) -> None:
    seeing = Seeing()
    called(mode, asks(), advisors=[seeing])
    (call,) = seeing.calls
    assert (call.arguments, dict(call.args), call.intent) == (
        '{"days":1,"place":"Oslo"}',
        {"place": "Oslo", "days": 1},
        "to see",
    )
    assert "inner_thought" in call.definition.input_schema["properties"]
    assert "to see" not in repr(call)


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_changes_the_arguments_of_the_tool_and_the_application_hears_of_the_call_all_the_same(
    mode: str,
) -> None:
    (result,) = called(mode, asks(), advisors=[Seeing({"place": "Rome"})]).tool_results
    assert (result.content, DONE, HEARD) == ("seen Rome", ["Rome"], ["to see"])


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_that_runs_the_tool_again_has_the_application_hear_once(mode: str) -> None:
    @tool(annotations=ToolAnnotations(idempotent=True))
    def flaky(place: str) -> str:
        """Fail once."""
        DONE.append(place)
        if len(DONE) < 2:
            raise ConnectionError
        return "at last"

    tools = augmented(flaky, arguments=Thinking, on_arguments=hear)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
        called(mode, asks("flaky"), tools=tools, advisors=[RetryToolAdvisor()])
    assert (DONE, HEARD) == (["Oslo", "Oslo"], ["to see"])


@pytest.mark.parametrize("mode", MODES)
def test_the_application_hears_nothing_of_a_call_that_an_advisor_denies(mode: str) -> None:
    rule = Rule("no", tool="look", then="deny", where=lambda args: args == {"place": "Oslo", "days": 1})
    (result,) = called(mode, asks(), advisors=[PolicyAdvisor(Policy([rule]))]).tool_results
    assert (result.decision, result.reason_code, DONE, HEARD) == ("denied", "no", [], [])


# Limits and the cache.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("keep", [False, True])
def test_calls_that_differ_only_in_the_reason_are_repeated(mode: str, keep: bool) -> None:
    class Remote:
        definition = ToolDefinition(name="look", input_schema={"properties": {"place": {"type": "string"}}})
        metadata = ToolMetadata()

        def call(self, tool_input: str, context: object = None) -> str:
            return "seen"

    calls = [asks(thought=f"thought {index}", id=str(index)) for index in range(4)]
    response = called(mode, *calls, tools=augmented(Remote(), arguments=Thinking, keep=keep))
    assert [each.decision for each in response.tool_results] == ["allowed"] * 3 + ["repeated"]
    assert response.stop_reason == "repeated_call"


@pytest.mark.parametrize("mode", MODES)
def test_calls_with_other_arguments_of_the_tool_are_not_repeated(mode: str) -> None:
    calls = [asks(place=f"place {index}", id=str(index)) for index in range(5)]
    assert called(mode, *calls).stop_reason == "answered"
    assert len(DONE) == 5


def test_a_tool_that_is_not_augmented_counts_an_argument_of_that_name() -> None:
    def think(inner_thought: str) -> str:
        """Think."""
        return "thought"

    calls = [ToolCall("think", {"inner_thought": f"{index}"}) for index in range(5)]
    assert called("call", *calls, tools=[*TOOLS, think]).stop_reason == "answered"


def test_repeated_calls_of_a_conversation_count_by_hand_and_in_a_resumed_run() -> None:
    history: tuple[Message, ...] = (UserMessage("?"),)
    decisions = []
    for index in range(4):
        answer = ChatResponse(AssistantMessage(tool_calls=(asks(thought=f"{index}", id=f"{index}"),)))
        done = ToolCallingManager().execute_tool_calls(history, answer, tools=TOOLS)
        history = done.conversation_history
        decisions += [each.decision for each in done.results]
    assert decisions == ["allowed"] * 3 + ["repeated"]

    looks = [asks(thought=f"{index}", id=f"{index}") for index in range(3)]
    paused = called("call", *looks, asks("pay", id="p"))
    assert paused.state is not None
    resumed = client(asks(thought="again", id="4")).resume(paused.state, {"p": Approve()}).call()
    assert [each.decision for each in resumed.tool_results] == ["approved", "repeated"]


@pytest.mark.parametrize("mode", MODES)
def test_the_cache_answers_a_call_with_another_reason(mode: str) -> None:
    cache = CacheToolAdvisor("look")
    first = called(mode, asks(thought="one"), advisors=[cache])
    again = called(mode, asks(thought="another"), advisors=[cache])
    assert [each.decision for each in (*first.tool_results, *again.tool_results)] == ["allowed", "answered"]
    assert (DONE, HEARD) == (["Oslo"], ["one"])


# Approvals, runs by hand, steps.


@pytest.mark.parametrize("mode", MODES)
def test_whoever_approves_sees_the_arguments_of_the_tool_and_the_reason(mode: str) -> None:
    asked: list[ApprovalRequest] = []

    def ask(request: ApprovalRequest) -> Approve:
        asked.append(request)
        assert HEARD == []
        return Approve(by="ana", arguments={**request.args, "amount": 7})

    (result,) = called(mode, asks("pay"), advisors=[ApprovalAdvisor(ask)]).tool_results
    assert [(dict(each.args), each.intent) for each in asked] == [({"amount": 5}, "to see")]
    assert (result.decision, result.content, HEARD) == ("approved", "paid 7", ["to see"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("decision", [Approve(), Approve(arguments={"amount": 7}), Reject("no")])
def test_a_call_that_waits_keeps_its_reason_and_runs_as_somebody_decides(mode: str, decision: Any) -> None:
    response = called(mode, asks("pay"))
    assert [(dict(each.args), each.intent) for each in response.pending] == [({"amount": 5}, "to see")]
    assert (DONE, HEARD) == ([], [])
    trail = KeptTrail()
    going_on = client(advisors=[auditing(trail)])
    assert response.state is not None
    (result,) = run(mode, going_on.resume(response.state, {"c": decision})).tool_results
    ran = isinstance(decision, Approve)
    assert (result.decision, HEARD) == ("approved" if ran else "rejected", ["to see"] if ran else [])
    assert ([f"paid {7 if decision.arguments else 5}"] if isinstance(decision, Approve) else []) == DONE
    assert trail.one("intent").contents["reason"].text == "to see"


@pytest.mark.parametrize("mode", MODES)
def test_a_predicate_decides_by_the_arguments_of_the_tool(mode: str) -> None:
    seen: list[Any] = []

    def decide(args: Any) -> bool:
        seen.append(dict(args))
        return False

    @tool(requires_approval=decide)
    def send(to: str) -> str:
        """Send."""
        return "sent"

    tools = augmented(send, arguments=Thinking)
    (result,) = called(mode, asks("send", to="ana"), tools=tools).tool_results
    assert (result.decision, seen) == ("allowed", [{"to": "ana"}])


def test_a_run_step_by_step_shows_and_decides_about_the_arguments_of_the_tool() -> None:
    run = client([asks(), asks("pay", id="p"), asks("look", None, id="x", days="soon")]).prompt("?").start()
    while (step := run.next()) is not None:
        if isinstance(step, ExecuteTools):
            assert step.args("c") == {"place": "Oslo", "days": 1}
            assert step.args("p") == {"amount": 5}
            with pytest.raises(InvalidArguments) as raised:
                step.args("x")
            assert "place: is required" in raised.value.problems
            step.approve("p", arguments={"amount": 6})
            step.deny("c", "not now")
        run.perform(step)
    results = run.response.tool_results
    assert [each.decision for each in results] == ["denied", "approved", "invalid_arguments"]
    assert (DONE, HEARD) == (["paid 6"], ["to see"])


@pytest.mark.parametrize("how", ["answer", "deny"])
def test_a_call_that_the_caller_decides_about_needs_no_valid_arguments(how: str) -> None:
    run = client(ToolCall("look", "no JSON", id="c")).prompt("?").start()
    while (step := run.next()) is not None:
        if isinstance(step, ExecuteTools):
            getattr(step, how)("c", "because")
        run.perform(step)
    assert [each.content.endswith("because") for each in run.response.tool_results] == [True]
    assert HEARD == []


# What is recorded.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_advisor", [False, True])
def test_the_reason_is_on_the_span_and_in_the_event_if_content_is_captured(mode: str, with_advisor: bool) -> None:
    telemetry, watching = Telemetry(capture="SPAN_AND_EVENT"), Watching()
    called(mode, asks(), advisors=[watching, *([Seeing()] if with_advisor else [])], telemetry=telemetry.options)
    attributes = telemetry.one("execute_tool look").attributes or {}
    assert attributes[names.INTENT] == "to see"
    assert json.loads(str(attributes[names.TOOL_CALL_ARGUMENTS])) == {"inner_thought": "to see", "place": "Oslo"}
    (decided,) = [each for each in watching.events if isinstance(each, ToolDecided)]
    assert decided.intent == "to see"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_the_application_does_with_the_arguments_is_below_the_span_of_the_tool(mode: str, is_async: bool) -> None:
    def receive(event: Any) -> None:
        HEARD.append(getattr(trace.get_current_span(), "name", None))

    async def areceive(event: Any) -> None:
        receive(event)

    tools = augmented(look, arguments=Thinking, on_arguments=areceive if is_async else receive)
    called(mode, asks(), tools=tools, telemetry=Telemetry().options)
    assert HEARD == ["execute_tool look"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("capture", [None, "SPAN_AND_EVENT"])
def test_the_reason_leaves_the_process_only_if_content_is_captured_and_the_tool_allows_it(
    mode: str, capture: str | None
) -> None:
    telemetry, watching = Telemetry(capture=capture), Watching()
    name = "look" if capture is None else "quiet"
    called(mode, asks(name, MARKER), advisors=[watching], telemetry=telemetry.options)
    assert HEARD == [MARKER]
    assert telemetry.one(f"execute_tool {name}")
    assert not [span.name for span in telemetry.spans if MARKER in span.to_json()]
    assert MARKER not in everything([[each.name, each.attributes] for each in telemetry.events])
    assert MARKER not in "".join(event.model_dump_json() for event in watching.events)


@pytest.mark.parametrize("mode", MODES)
def test_the_audit_trail_has_the_reason_and_all_arguments_before_the_application_hears_of_them(mode: str) -> None:
    trail = KeptTrail()

    def receive(event: Any) -> None:
        assert trail.one("intent").contents["reason"].text == "to see"
        hear(event)

    tools = augmented(look, arguments=Thinking, on_arguments=receive)
    called(mode, asks(), tools=tools, advisors=[auditing(trail)])
    contents = trail.one("intent").contents
    assert contents["arguments"].text == '{"days":1,"place":"Oslo"}'
    assert json.loads(contents["requested_arguments"].text) == {"inner_thought": "to see", "place": "Oslo"}
    assert all(each.may_be_stored for each in contents.values())
    assert HEARD == ["to see"]
    assert trail.stories() == [["intent look", "allowed", "ok"]]


@pytest.mark.parametrize("mode", MODES)
def test_the_audit_trail_may_not_store_the_reason_for_a_tool_with_capture_disabled(mode: str) -> None:
    trail = KeptTrail()
    called(mode, asks("quiet"), advisors=[auditing(trail)])
    assert not trail.one("intent").contents["reason"].may_be_stored


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("refused", ["by an advisor", "by a limit", "by the audit advisor"])
def test_the_reason_of_a_refused_call_is_on_record(mode: str, refused: str) -> None:
    trail, telemetry = KeptTrail(), Telemetry(capture="SPAN_ONLY")
    trail.is_out = refused == "by the audit advisor"
    rule = Rule("no", tool="look" if refused == "by an advisor" else "other", then="deny")
    limits = LoopLimits(max_calls_per_tool=1)
    calls = [asks(), asks(place="Rome", id="d", thought="again")] if refused == "by a limit" else [asks()]
    called(
        mode,
        *calls,
        limits=limits,
        advisors=[auditing(trail), PolicyAdvisor(Policy([rule], default="allow"))],
        telemetry=telemetry.options,
    )
    span = telemetry.one("refuse_tool look").attributes or {}
    reason = "again" if refused == "by a limit" else "to see"
    assert span[names.INTENT] == reason
    assert trail.of("intent")[-1].contents["reason"].text == reason


@pytest.mark.parametrize("mode", MODES)
def test_a_reason_that_an_advisor_sets_replaces_the_stated_one(mode: str) -> None:
    class Shorter(Advisor):
        name, order = "shorter", 350

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            assert call.intent is not None
            return await call_next(call.replace(intent=call.intent[:2]))

    trail, telemetry = KeptTrail(), Telemetry(capture="SPAN_ONLY")
    called(mode, asks(), advisors=[Shorter(), auditing(trail)], telemetry=telemetry.options)
    assert trail.one("intent").contents["reason"].text == "to"
    assert (telemetry.one("execute_tool look").attributes or {})[names.INTENT] == "to"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("capture", [None, "SPAN_AND_EVENT"])
def test_a_failure_of_the_application_is_on_the_span_of_a_call_that_did_not_run(mode: str, capture: str | None) -> None:
    def receive(event: Any) -> None:
        raise LookupError(event.arguments.inner_thought)

    telemetry, trail = Telemetry(capture=capture), KeptTrail()
    tools = augmented(quiet, arguments=Thinking, on_arguments=receive)
    with pytest.raises(LookupError):
        called(mode, asks("quiet", MARKER), tools=tools, telemetry=telemetry.options, advisors=[auditing(trail)])
    span = telemetry.one("refuse_tool quiet")
    assert (span.attributes or {})[names.ERROR_TYPE] == "LookupError"
    assert not [each.name for each in telemetry.spans if MARKER in each.to_json()]
    assert [draft.kind for draft in trail.drafts] == ["intent"]


@pytest.mark.parametrize("mode", MODES)
def test_a_broken_validator_of_additional_arguments_is_on_the_span_of_the_call(mode: str) -> None:
    class Broken(BaseModel):
        thought: str

        def model_post_init(self, context: object) -> None:
            raise LookupError(self.thought)

    telemetry = Telemetry()
    tools = augmented(look, arguments=Broken)
    call = ToolCall("look", {"place": "Oslo", "thought": MARKER})
    with pytest.raises(LookupError):
        called(mode, call, tools=tools, telemetry=telemetry.options)
    assert (telemetry.one("refuse_tool look").attributes or {})[names.ERROR_TYPE] == "LookupError"
    assert not [each.name for each in telemetry.spans if MARKER in each.to_json()]
    assert DONE == []
