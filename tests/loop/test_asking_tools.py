"""Tools that ask for input: how their runs pause, what is kept, and how they go on with the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.audit.draft_trails import KeptTrail, person_of
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.observe.exported import Wiretap
from traced_tools import (
    Advisor,
    Approve,
    AuditAdvisor,
    ChatClient,
    ChatClientResponse,
    Policy,
    PolicyAdvisor,
    Reject,
    Rule,
    ToolCall,
    ToolContext,
    tool,
)
from traced_tools.approvals import PendingStore
from traced_tools.core import InputRequest, PendingInput, Provide
from traced_tools.errors import InputRequired, ResumeError
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, ToolCallingManager, augmented

STATE = 'ünï "quoted" \\ \n\t 🤖 {"a":  1}'
SIZES = {"type": "object", "properties": {"cm": {"type": "integer", "minimum": 1}}, "required": ["cm"]}
CALLS: list[str] = []
FLAKY: list[int] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()
    FLAKY.clear()


def question(key: str = "size", **params: Any) -> InputRequest:
    params = {"message": "Which size?", "requestedSchema": SIZES, **params}
    return InputRequest(key=key, method="elicitation/create", params=params)


def ask_or_order(article: str, context: ToolContext) -> str:
    CALLS.append(article)
    if context.input is None:
        raise InputRequired(PendingInput(requests=(question(),), state=STATE))
    assert context.input.asked.state == STATE
    entered = context.input.provided.answers["size"]
    return "not ordered" if entered is None else f"ordered {article} of {entered['cm']} cm"


@tool
def order(article: str, context: ToolContext) -> str:
    """Order an article."""
    return ask_or_order(article, context)


@tool(requires_approval=True)
def buy(article: str, context: ToolContext) -> str:
    """Buy an article."""
    return ask_or_order(article, context)


@tool
def look() -> str:
    """Look."""
    CALLS.append("look")
    return "seen"


def client(*turns: Any, **settings: Any) -> ChatClient:
    return ChatClient(ScriptedChatModel(list(turns)), **{"tools": [order, buy, look], **settings})


def orders(id: str = "o", article: str = "lamp") -> ToolCall:
    return ToolCall("order", {"article": article}, id=id)


def resumed(
    mode: str, paused: ChatClientResponse, decisions: dict[str, Any] | None, **settings: Any
) -> ChatClientResponse:
    assert paused.state is not None
    return run(mode, client("done", **settings).resume(paused.state, decisions))


@pytest.mark.parametrize("mode", MODES)
def test_a_run_pauses_when_a_tool_asks_and_goes_on_with_the_answers(mode: str) -> None:
    paused = run(mode, client([orders(), ToolCall("look", {}, id="l")]).prompt("?"))
    assert paused.stop_reason == "awaiting_input"
    (call,) = paused.pending
    assert call.input is not None and call.input.requests[0].schema == SIZES
    assert (call.input.requests[0].message, call.input.requests[0].url, call.input.round) == ("Which size?", None, 1)
    assert [each.tool for each in paused.tool_results] == ["look"]
    response = resumed(mode, paused, {"o": Provide({"size": {"cm": 4}}, by="ana")})
    assert (response.content, response.stop_reason) == ("done", "answered")
    assert [(each.content, each.by) for each in response.tool_results] == [("ordered lamp of 4 cm", "ana")]
    assert sorted(CALLS[:2]) == ["lamp", "look"]
    assert CALLS[2:] == ["lamp"]


@pytest.mark.parametrize("mode", MODES)
def test_a_call_without_an_answer_waits_on_and_its_tool_is_not_called(mode: str) -> None:
    paused = run(mode, client([orders()]).prompt("?"))
    again = resumed(mode, paused, None)
    assert again.stop_reason == "awaiting_input"
    assert again.pending == paused.pending
    assert CALLS == ["lamp"]
    assert resumed(mode, again, {"o": Provide({"size": None})}).tool_results[0].content == "not ordered"


@pytest.mark.parametrize("mode", MODES)
def test_who_refuses_to_answer_ends_the_call_and_the_model_reads_why(mode: str) -> None:
    paused = run(mode, client([orders()]).prompt("?"))
    (result,) = resumed(mode, paused, {"o": Reject("ask later.", by="ana")}).tool_results
    assert (result.decision, result.by) == ("rejected", "ana")
    assert result.content.endswith("it asked for input and did not get any: ask later.")
    assert CALLS == ["lamp"]


@pytest.mark.parametrize(
    ("call", "decision", "problem"),
    [
        ("o", Approve(), "waits for input: pass Provide"),
        ("p", Provide({}), "does not wait for input: pass Approve"),
        ("o", Provide({"colour": "red"}), "has no question"),
        ("o", Provide({"size": {"cm": 0}}), "schema of the question: minimum"),
        ("o", Provide({"size": {}}), "invalid"),
        ("o", Provide({"size": "four"}), "must be what the user has entered"),
    ],
)
def test_a_decision_that_does_not_fit_is_refused_before_anything_is_spent(
    call: str, decision: Any, problem: str, tmp_path: Path
) -> None:
    with PendingStore(tmp_path / "pending.db") as store:
        calls = [orders(), ToolCall("buy", {"article": "desk"}, id="p")]
        paused = client(calls, pending_store=store).prompt("?").call()
        assert paused.stop_reason == "awaiting_approval"  # the other call waits for input
        assert paused.state is not None
        with pytest.raises(ResumeError, match=problem):
            client("done", pending_store=store).resume(paused.state, {call: decision})
        with pytest.raises(ResumeError, match=problem):
            store.decide(call, decision)
        assert len(store.pending()) == 2


@pytest.mark.parametrize(
    ("method", "answer", "is_valid"),
    [
        ("sampling/createMessage", "a text", True),
        ("sampling/createMessage", {"text": "a text"}, False),
        ("roots/list", ["/srv"], True),
        ("roots/list", "/srv", False),
        ("roots/list", [1], False),
    ],
)
def test_answers_have_the_form_of_what_was_asked(method: Any, answer: Any, is_valid: bool) -> None:
    @tool
    def ask(context: ToolContext) -> str:
        """Ask."""
        if context.input is None:
            raise InputRequired(PendingInput(requests=(InputRequest(key="k", method=method, params={}),)))
        return json.dumps(context.input.provided.answers["k"])

    paused = client([ToolCall("ask", {}, id="a")], tools=[ask]).prompt("?").call()
    assert paused.state is not None
    resuming = client("done", tools=[ask])
    if is_valid:
        response = resuming.resume(paused.state, {"a": Provide({"k": answer})}).call()
        assert json.loads(response.tool_results[0].content) == answer
    else:
        with pytest.raises(ResumeError, match="is invalid"):
            resuming.resume(paused.state, {"a": Provide({"k": answer})})


QUOTING: list[tuple[dict[str, Any], str]] = [
    ({"enum": [MARKER]}, "enum"),
    ({"const": MARKER}, "const"),
    ({"pattern": MARKER}, "pattern"),
    ({"type": "integer", "maximum": 4711}, "type"),
    ({"anyOf": [{"const": MARKER}, {"pattern": MARKER}]}, "anyOf"),
    ({"not": {"const": "x"}}, "not"),
]


@pytest.mark.parametrize(
    ("schema", "failed"),
    [
        *(({"properties": {"field": field}}, failed) for field, failed in QUOTING),
        ({"required": [MARKER]}, "required"),
        ({"properties": {MARKER: {}}, "additionalProperties": False}, "additionalProperties"),
        ({"dependentRequired": {"field": [MARKER]}}, "dependentRequired"),
        ({"propertyNames": {"pattern": MARKER}}, "pattern"),
        ({"properties": {"field": False}, "required": [MARKER]}, "false, required"),
    ],
)
def test_an_error_about_an_answer_quotes_neither_the_schema_nor_the_answer(schema: Any, failed: str) -> None:
    @tool
    def ask() -> str:
        """Ask."""
        params = {"message": "?", "requestedSchema": {"type": "object", **schema}}
        question = InputRequest(key="k", method="elicitation/create", params=params)
        raise InputRequired(PendingInput(requests=(question,)))

    paused = client([ToolCall("ask", {}, id="a")], tools=[ask]).prompt("?").call()
    assert paused.state is not None
    with pytest.raises(ResumeError) as caught:
        client("done", tools=[ask]).resume(paused.state, {"a": Provide({"k": {"field": "x"}})})
    assert str(caught.value) == (
        "the answer to question 1 of the call 'a' is invalid: it does not meet the schema of the question: " + failed
    )


json_texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=3),
    max_leaves=5,
)


@given(
    key=st.text(st.characters(codec=None)),
    message=st.text(st.characters(codec=None)),
    state=st.none() | st.text(st.characters(codec=None)),
    more=json_texts,
    answer=json_texts,
)
def test_questions_and_the_state_of_a_tool_survive_whatever_they_contain(
    key: str, message: str, state: str | None, more: Any, answer: Any
) -> None:
    found: list[Any] = []
    params = {"message": message, "more": more}

    @tool
    def ask(context: ToolContext) -> str:
        """Ask."""
        asked = PendingInput(
            requests=(InputRequest(key=key, method="elicitation/create", params=params),), state=state, round=3
        )
        if context.input is None:
            raise InputRequired(asked)
        assert context.input.asked == asked
        found.append(context.input.provided.answers[key])
        return "done"

    paused = client([ToolCall("ask", {}, id="a")], tools=[ask]).prompt("?").call()
    assert paused.state is not None
    paused.state.encode()
    decisions = {"a": Provide({key: {"value": answer}})}
    client("done", tools=[ask]).resume(paused.state, decisions).call()
    assert found == [{"value": answer}]


def test_an_approval_is_kept_while_the_call_waits_for_input() -> None:
    asked = client([ToolCall("buy", {"article": "desk"}, id="b")]).prompt("?").call()
    assert (asked.stop_reason, CALLS) == ("awaiting_approval", [])
    waits = resumed("call", asked, {"b": Approve(by="ana", code="cheap")})
    assert (waits.stop_reason, waits.pending[0].approval) == ("awaiting_input", Approve(by="ana", code="cheap"))
    (result,) = resumed("call", waits, {"b": Provide({"size": {"cm": 9}}, by="ben")}).tool_results
    assert (result.decision, result.by, result.reason_code) == ("approved", "ana", "cheap")
    assert result.content == "ordered desk of 9 cm"


@pytest.mark.parametrize("mode", MODES)
def test_a_call_goes_on_with_the_arguments_that_were_approved_instead_of_its_own(mode: str) -> None:
    asked = run(mode, client([ToolCall("buy", {"article": "yacht"}, id="b")]).prompt("?"))
    waits = resumed(mode, asked, {"b": Approve(by="ana", arguments={"article": "desk"})})
    (result,) = resumed(mode, waits, {"b": Provide({"size": {"cm": 9}})}).tool_results
    assert (result.content, result.by) == ("ordered desk of 9 cm", "ana")
    assert CALLS == ["desk", "desk"]


def test_answers_are_dropped_if_the_call_goes_on_with_other_arguments() -> None:
    paused = client([orders()]).prompt("?").call()

    class Redirect(Advisor):
        name, order = "redirect", 500

        async def advise_tool(self, call: Any, call_next: Any) -> Any:
            return await call_next(call.replace(arguments={"article": "bomb"}))

    again = resumed("call", paused, {"o": Provide({"size": {"cm": 4}})}, advisors=[Redirect()])
    assert again.stop_reason == "awaiting_input"  # it asks about the other article
    assert json.loads(again.pending[0].arguments) == {"article": "bomb"}


def test_policies_decide_again_when_the_call_goes_on() -> None:
    paused = client([orders()]).prompt("?").call()
    policy = PolicyAdvisor(Policy([Rule("closed", tool="order", then="deny")]))
    (result,) = resumed("call", paused, {"o": Provide({"size": {"cm": 4}})}, advisors=[policy]).tool_results
    assert (result.decision, CALLS) == ("denied", ["lamp"])


def test_a_tool_that_asks_is_not_retried() -> None:
    @tool(retries=3, retry_on=Exception)
    def ask(context: ToolContext) -> str:
        """Ask."""
        CALLS.append("ask")
        raise InputRequired(PendingInput(requests=(question(),)))

    assert client([ToolCall("ask")], tools=[ask]).prompt("?").call().stop_reason == "awaiting_input"
    assert CALLS == ["ask"]


def test_additional_arguments_are_delivered_once() -> None:
    class Why(BaseModel):
        why: str

    delivered: list[Any] = []
    tools = [augmented([order], arguments=Why, on_arguments=delivered.append)]
    call = ToolCall("order", {"article": "lamp", "why": "dark"}, id="o")
    paused = client([call], tools=tools).prompt("?").call()
    response = resumed("call", paused, {"o": Provide({"size": {"cm": 4}})}, tools=tools)
    assert response.tool_results[0].content == "ordered lamp of 4 cm"
    assert len(delivered) == 1


def test_a_batch_is_held_for_approvals_and_not_for_input() -> None:
    loop = ToolCallingAdvisor(ToolCallingManager(hold="batch"))
    paused = client([orders(), ToolCall("look", {}, id="l")], advisors=[loop]).prompt("?").call()
    assert [each.call_id for each in paused.pending] == ["o"]
    assert not paused.pending[0].held
    assert CALLS == ["lamp", "look"]


def test_of_a_held_batch_each_call_goes_on_when_it_is_answered() -> None:
    loop = ToolCallingAdvisor(ToolCallingManager(hold="batch"))
    paused = client([orders("a", "lamp"), orders("b", "desk")], advisors=[loop]).prompt("?").call()
    again = resumed("call", paused, {"a": Provide({"size": {"cm": 1}})}, advisors=[loop])
    assert [each.content for each in again.tool_results] == ["ordered lamp of 1 cm"]
    response = resumed("call", again, {"b": Provide({"size": {"cm": 2}})}, advisors=[loop])
    assert [each.content for each in response.tool_results] == ["ordered desk of 2 cm"]


def test_a_driver_answers_a_call_that_waited() -> None:
    paused = client([orders()]).prompt("?").call()
    assert paused.state is not None
    with client("done").resume(paused.state).start() as driven:
        while step := driven.next():
            if isinstance(step, ExecuteTools):
                step.decide("o", Provide({"size": {"cm": 2}}))
            driven.perform(step)
    assert driven.response.tool_results[0].content == "ordered lamp of 2 cm"


def test_without_the_loop_the_result_has_what_waits() -> None:
    manager, messages = ToolCallingManager(), client().prompt("?").messages
    answer = ChatResponse(client([orders()]).prompt("?").call().messages[-1])  # type: ignore[arg-type]
    first = manager.execute_tool_calls(messages, answer, tools=[order])
    assert first.pending[0].input is not None
    decisions = {"o": Provide({"size": {"cm": 3}})}
    then = manager.execute_tool_calls(messages, answer, tools=[order], decisions=decisions, earlier=first)
    assert [each.content for each in then.results] == ["ordered lamp of 3 cm"]


def test_the_trail_has_who_answered_and_the_outcome_of_each_part() -> None:
    trail = KeptTrail()
    audit = AuditAdvisor(trail)  # type: ignore[arg-type]
    paused = client([orders()], advisors=[audit]).prompt("?").call()
    resumed("call", paused, {"o": Provide({"size": {"cm": 4}}, by="ana")}, advisors=[audit])
    story = [each.fields.get("decision") or each.fields.get("outcome") or each.kind for each in trail.drafts]
    assert story == ["intent", "allowed", "input_required", "intent", "allowed", "ok"]
    assert [person_of(each) for each in trail.of("decision")] == [None, "ana"]


@pytest.mark.parametrize("mode", MODES)
def test_telemetry_shows_that_a_tool_asks_and_no_question_or_answer(
    mode: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    key = f"k{MARKER}"

    @tool
    def ask(secret: str, context: ToolContext) -> str:
        """Ask."""
        if context.input is None:
            raise InputRequired(PendingInput(requests=(question(key, message=f"Is it {MARKER}?"),), state=MARKER))
        return str(context.input.provided.answers)

    with Wiretap(caplog, capsys) as wiretap:
        settings: dict[str, Any] = {"tools": [ask], "telemetry": wiretap.telemetry.options}
        call = ToolCall("ask", {"secret": MARKER}, id="a")
        paused = wiretap.run(client([call], **settings).prompt(MARKER), mode)
        span = wiretap.telemetry.one("execute_tool ask").attributes
        assert span is not None and span["traced_tools.tool.outcome"] == "input_required"
        assert "error.type" not in span
        provided = Provide({key: {"cm": 1, "x": MARKER}}, by=MARKER)
        response = wiretap.run(client("done", **settings).resume(paused.state, {"a": provided}), mode)
        assert MARKER in response.tool_results[0].content
        assert not any(MARKER in repr(each) for each in (paused, paused.pending, provided, response.tool_results))
        wiretap.check()
        wiretap.telemetry.check_each_ended_once()


def test_a_store_lists_the_questions_and_takes_the_answers(tmp_path: Path) -> None:
    with PendingStore(tmp_path / "pending.db") as store:
        paused = client([orders()], pending_store=store).prompt("?").call()
        (waits,) = store.pending()
        assert [(each.key, each.method, each.message) for each in waits.input] == [
            ("size", "elicitation/create", "Which size?")
        ]
        store.decide("o", Provide({"size": {"cm": 5}}, by="ana"))
        found = store.find("o").decision
        assert found == Provide({"size": {"cm": 5}}, by="ana")
        assert paused.state is not None and store.ready() == [paused.state]
        response = client("done", pending_store=store).resume(paused.state).call()
        assert response.tool_results[0].content == "ordered lamp of 5 cm"
        with pytest.raises(ResumeError, match="spent"):
            client("done", pending_store=store).resume(paused.state).call()
