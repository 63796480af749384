"""Served tools that require approval: the client's user decides, by elicitation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ElicitResult, ErrorData, InputRequiredResult

from tests.captured import Telemetry
from tests.mcp.serving import User, audited, calling, decision_of, in_each_era, serving_http, talk, text_of
from tests.mcp.test_serving import ask
from tests.waiting import patiently
from traced_tools import (
    ApprovalAdvisor,
    Approve,
    AuditAdvisor,
    ChatClient,
    Policy,
    PolicyAdvisor,
    Reject,
    Rule,
    ToolCall,
    tool,
)
from traced_tools.audit import AuditTrail
from traced_tools.core import Undecided
from traced_tools.core.state_key import KEY_VARIABLE, StateKey
from traced_tools.mcp import McpServer, McpToolset, server
from traced_tools.mcp.request_states import RequestStates
from traced_tools.testing import ScriptedChatModel

paid: list[str] = []


@pytest.fixture(autouse=True)
def nothing_paid() -> Iterator[None]:
    paid.clear()
    yield


@tool(requires_approval=True)
def pay(to: str, amount: int = 5) -> str:
    """Pay somebody."""
    paid.append(to)
    return f"paid {amount} to {to}"


@tool(requires_approval=True)
def give(to: str, amount: int = 5) -> str:
    """Give somebody something."""
    paid.append(to)
    return f"gave {amount} to {to}"


def look(at: str) -> str:
    """Look at something."""
    return f"looked at {at}"


# What the user decides.


@in_each_era
def test_the_users_approval_lets_the_tool_run_and_is_recorded(era: str, tmp_path: Path) -> None:
    user, telemetry = User(), Telemetry()
    with AuditTrail(tmp_path / "audit.db") as trail:
        advisors = [AuditAdvisor(trail)]
        with serving_http([pay], advisors=advisors, telemetry=telemetry.options) as url:
            result = calling(url, era, "pay", {"to": "Ana"}, elicitation_callback=user)
        assert trail.flush()
    assert (text_of(result), result.is_error, paid) == ("paid 5 to Ana", False, ["Ana"])
    (asked,) = user.asked
    assert asked.message == 'May the tool pay run with the arguments {"amount": 5, "to": "Ana"}?'
    call = audited(tmp_path / "audit.db")[-1]
    assert (decision_of(call), call.fields("decision")["reason_code"]) == ("approved", "mcp_client")
    span = telemetry.one("execute_tool pay")
    assert (span.attributes or {})["traced_tools.tool.decision"] == "approved"


@in_each_era
@pytest.mark.parametrize(
    ("action", "content", "text"),
    [
        ("accept", {"approve": False}, "the client's user did not approve it"),
        ("accept", {}, "the client's user did not approve it"),
        ("decline", None, "the client's user did not approve it"),
        ("cancel", None, "the client's user did not decide about it"),
    ],
)
def test_without_the_users_approval_the_tool_does_not_run(era: str, action: str, content: Any, text: str) -> None:
    with serving_http([pay]) as url:
        result = calling(url, era, "pay", {"to": "Ana"}, elicitation_callback=User(action, content))
    assert result.is_error and text in text_of(result)
    assert paid == []


@in_each_era
def test_a_client_that_cannot_ask_gets_a_refusal_that_says_so(era: str, tmp_path: Path) -> None:
    with AuditTrail(tmp_path / "audit.db") as trail:
        with serving_http([pay], advisors=[AuditAdvisor(trail)]) as url:
            if era == "handshake":
                result = calling(url, era, "pay", {"to": "Ana"})
                assert result.is_error
                text = text_of(result)
            else:  # the newer revision has an error that names what the client must support
                params = {"name": "pay", "arguments": {"to": "Ana"}}
                reply = ask(url, "tools/call", params, Method="tools/call", Name="pay")
                error = reply.json()["error"]
                assert (reply.status_code, error["code"]) == (400, -32021)
                assert error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
                text = error["message"]
        assert trail.flush()
    assert "this client cannot ask its user" in text
    assert paid == []
    (call,) = audited(tmp_path / "audit.db")
    assert (decision_of(call), call.fields("decision")["reason_code"]) == ("denied", "mcp_client_cannot_ask")


def test_a_question_of_another_server_that_nobody_can_approve_is_declined_and_the_call_goes_on() -> None:
    policy = Policy([Rule("questions", tool="elicitation/create", then="require_approval")], default="allow")
    with serving_http([pay]) as inner:
        toolset = McpToolset.http(inner, name="inner", elicit=lambda message, schema: {"approve": True})
        with serving_http([toolset], advisors=[PolicyAdvisor(policy)]) as url:
            result = calling(url, "modern", "pay", {"to": "Ana"})
    assert result.is_error and "the client's user did not" in text_of(result)
    assert paid == []


def test_a_server_without_sessions_cannot_ask_a_client_of_the_older_era() -> None:
    with serving_http([pay], app={"stateless": True}) as url:
        result = calling(url, "handshake", "pay", {"to": "Ana"}, elicitation_callback=User())
        assert result.is_error and "cannot ask its user" in text_of(result)
        assert text_of(calling(url, "modern", "pay", {"to": "Ana"}, elicitation_callback=User())) == "paid 5 to Ana"


def test_a_client_that_fails_to_ask_approves_nothing() -> None:
    async def broken(context: Any, params: Any) -> ErrorData:
        return ErrorData(code=INTERNAL_ERROR, message="secret")

    with serving_http([pay]) as url:
        result = calling(url, "handshake", "pay", {"to": "Ana"}, elicitation_callback=broken)
    assert "asking the client's user for approval failed" in text_of(result)
    assert paid == []


def test_a_user_who_never_answers_keeps_no_call_waiting_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(context: Any, params: Any) -> ElicitResult:
        await asyncio.sleep(600)
        raise AssertionError

    monkeypatch.setattr(server, "LIFETIME", 0.05)
    with serving_http([pay]) as url:
        result = calling(url, "handshake", "pay", {"to": "Ana"}, elicitation_callback=silent)
    assert "asking the client's user for approval failed" in text_of(result)
    assert paid == []


@in_each_era
def test_an_approver_of_the_application_decides_first(era: str) -> None:
    for answer, text in ((Approve(by="ben"), "paid 5 to Ana"), (Reject("Not today."), "Not today.")):
        user = User()
        with serving_http([pay], advisors=[ApprovalAdvisor(lambda request, answer=answer: answer)]) as url:
            assert text in text_of(calling(url, era, "pay", {"to": "Ana"}, elicitation_callback=user))
        assert user.asked == []
    user = User()
    with serving_http([pay], advisors=[ApprovalAdvisor(lambda request: Undecided())]) as url:
        assert text_of(calling(url, era, "pay", {"to": "Ana"}, elicitation_callback=user)) == "paid 5 to Ana"
    assert len(user.asked) == 1


@in_each_era
def test_a_policy_can_require_approval(era: str) -> None:
    rules = [Rule("careful", then="require_approval", tool="look", reason="Somebody must know.")]
    user = User()
    with serving_http([look], advisors=[PolicyAdvisor(Policy(rules))]) as url:
        assert text_of(calling(url, era, "look", {"at": "it"}, elicitation_callback=user)) == "looked at it"
    assert user.asked[0].message.endswith('{"at": "it"}? Somebody must know.')


@in_each_era
def test_a_question_shows_what_the_model_wrote_and_not_how_it_disguised_it(era: str) -> None:
    user, to = User(), "Ana\u202eBen\u200b\x1b[2J\x9b\u2800"
    rules = [Rule("careful", then="require_approval", tool="look", reason="Some\u202ebody\nmust know." + "!" * 9000)]
    with serving_http([look, pay], advisors=[PolicyAdvisor(Policy(rules, default="allow"))]) as url:
        calling(url, era, "pay", {"amount": 7, "to": to}, elicitation_callback=user)
        calling(url, era, "look", {"at": "x" * 100_000}, elicitation_callback=user)
    disguised, long = (each.message for each in user.asked)
    shown = r'{"amount": 7, "to": "Ana\u202eBen\u200b\u001b[2J\u009b\u2800"}'
    assert disguised == f"May the tool pay run with the arguments {shown}?"
    assert paid == [to]
    assert r"Some\u202ebody\nmust know." in long and long.isprintable() and len(long) < 1000


@in_each_era
def test_calls_are_asked_about_side_by_side(era: str) -> None:
    user = User()

    async def several(client: Client) -> list[Any]:
        return await asyncio.gather(*(client.call_tool("pay", {"to": name}) for name in "abc"))

    with serving_http([pay]) as url:
        results = talk(url, era, several, elicitation_callback=user)
    assert [text_of(each) for each in results] == ["paid 5 to a", "paid 5 to b", "paid 5 to c"]
    assert len(user.asked) == 3


# States.


async def ask_for(client: Client, **arguments: Any) -> str:
    """The state of a call that asks for an approval."""
    asked: Any = await client.session.call_tool("pay", {"to": "Ana", **arguments}, allow_input_required=True)
    assert isinstance(asked, InputRequiredResult)
    assert asked.request_state is not None and [*(asked.input_requests or {})] == ["approval"]
    return asked.request_state


async def answer(client: Client, state: str, name: str = "pay", **arguments: Any) -> str:
    """The text of a call that is repeated with an approval, or of the error."""
    approval: Any = {"approval": ElicitResult(action="accept", content={"approve": True})}
    arguments = {"to": "Ana", **arguments}
    try:
        result = await client.session.call_tool(
            name, arguments, input_responses=approval, request_state=state, allow_input_required=True
        )
    except MCPError as error:
        assert error.code == -32602
        return error.message
    return text_of(result)


INVALID = "Invalid or expired requestState"


def with_states(what: Any, **settings: Any) -> Any:
    with serving_http([pay, give], **settings) as url:
        return talk(url, "modern", what, elicitation_callback=User())


def test_a_state_is_for_one_use() -> None:
    async def twice(client: Client) -> list[str]:
        state = await ask_for(client)
        return [await answer(client, state) for _ in range(2)]

    assert with_states(twice) == ["paid 5 to Ana", INVALID]
    assert paid == ["Ana"]


def test_a_state_is_for_the_arguments_and_the_tool_that_were_asked_about() -> None:
    async def others(client: Client) -> list[str]:
        state = await ask_for(client)
        found = [await answer(client, state, amount=6), await answer(client, state, to="Ben")]
        return [*found, await answer(client, state, "give"), await answer(client, state, amount=5)]

    assert with_states(others) == [INVALID, INVALID, INVALID, "paid 5 to Ana"]


def test_a_changed_state_approves_nothing() -> None:
    async def changed(client: Client) -> set[str]:
        state = await ask_for(client)
        key, expires, number, mac = state.split(".")
        later = str(int(expires) + 1)
        others = [f"{key}.{later}.{number}.{mac}", f"{key}.{expires}.{number[::-1]}.{mac}", state[:-1], f"{state}0"]
        others += ["", "x", "a.b.c.d", "\ud800", f"0.{expires}.{number}.{mac}", f"{key}.{expires}.{number}.é"]
        return {await answer(client, each) for each in others if each != "\ud800"}

    assert with_states(changed) == {INVALID}
    assert paid == []


def test_a_state_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    async def late(client: Client) -> str:
        state = await ask_for(client)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 601)
        return await answer(client, state)

    assert with_states(late) == INVALID


def test_a_state_is_for_the_caller_who_asked() -> None:
    tokens = {"ana": "a-token-of-ana-0123456789", "ben": "a-token-of-ben-0123456789"}
    with serving_http([pay], app={"token": tokens}) as url:
        state = talk(url, "modern", ask_for, token=tokens["ana"], elicitation_callback=User())
        for name, text in (("ben", INVALID), ("ana", "paid 5 to Ana")):
            repeated = talk(
                url, "modern", lambda client: answer(client, state), token=tokens[name], elicitation_callback=User()
            )
            assert repeated == text


@pytest.mark.slow
def test_processes_that_share_a_key_accept_each_others_states(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_two_servers() -> str:
        with serving_http([pay]) as first, serving_http([pay]) as second:
            state = talk(first, "modern", ask_for, elicitation_callback=User())
            found: str = talk(second, "modern", lambda client: answer(client, state), elicitation_callback=User())
            return found

    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert on_two_servers() == INVALID
    monkeypatch.setenv(KEY_VARIABLE, "a-key-of-the-tests-for-states")
    assert on_two_servers() == "paid 5 to Ana"


def test_a_repeated_request_without_an_answer_asks_again() -> None:
    async def again(client: Client) -> Any:
        state = await ask_for(client)
        return await client.session.call_tool("pay", {"to": "Ana"}, request_state=state, allow_input_required=True)

    assert isinstance(with_states(again), InputRequiredResult)
    assert paid == []


def test_a_call_that_was_approved_before_has_a_record_of_each_request(tmp_path: Path) -> None:
    async def asked_and_answered(client: Client) -> str:
        return await answer(client, await ask_for(client))

    with AuditTrail(tmp_path / "audit.db") as trail:
        with_states(asked_and_answered, advisors=[AuditAdvisor(trail)])
        assert trail.flush()
    assert [decision_of(call) for call in audited(tmp_path / "audit.db")] == ["pending", "approved"]


def test_spent_states_are_forgotten_when_they_have_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    states, now = RequestStates([StateKey(b"0123456789abcdef")]), time.time()
    for _ in range(3):
        assert states.redeem(states.issue(["a"]), ["a"])
    monkeypatch.setattr(time, "time", lambda: now + 1000)
    assert states.redeem(states.issue(["a"]), ["a"])
    assert len(states._redeemed) == 1


def test_the_client_of_the_sdk_asks_by_itself() -> None:
    async def paying(url: str) -> Any:
        async with Client(url, mode="2026-07-28", elicitation_callback=User()) as client:
            return await client.call_tool("pay", {"to": "Ana"})

    with serving_http([pay]) as url:
        assert text_of(asyncio.run(patiently(paying(url)))) == "paid 5 to Ana"


@in_each_era
def test_a_served_tool_whose_agent_waits_is_an_error_that_says_what_waits(era: str) -> None:
    bank = ChatClient(ScriptedChatModel([ToolCall("pay", {"to": "Ana"}, id="p")]), name="bank", tools=[pay])
    server = McpServer([bank.as_tool("ask_bank", "Ask the bank.")])
    result = calling(server.sdk, era, "ask_bank", {"question": "Pay Ana."})
    assert (result.is_error, paid) == (True, [])
    assert "the agent 'bank' waits for a decision about its call of pay" in text_of(result)
