"""On whose behalf a run is, and through whom: in runs, spans, log-based events and typed events."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.mcp.serving import audited, calling, serving_http
from tests.modes import MODES, run
from tests.observe.closed_list import assert_consistent
from traced_tools import (
    Advisor,
    AssistantMessage,
    AuditAdvisor,
    AuditTrail,
    ChatClient,
    ContentCapture,
    MemoryAdvisor,
    ToolCall,
    ToolContext,
    tool,
)
from traced_tools.core.identity import actor, actor_chain, check_principal
from traced_tools.errors import ChatMemoryError
from traced_tools.mcp import McpApp, McpServer
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.models import ChatResponse
from traced_tools.observe import Event, RunStarted, content, names
from traced_tools.run.context import RunContext
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

CALL = ToolCall("whose", {}, id="c1")


@tool
def whose(context: ToolContext) -> str:
    """Return the principal."""
    return str(context.principal)


class Listening(Advisor):
    """Collects the events of runs."""

    name, order = "listening", 1000

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def of(self, agent: str) -> Event:
        return next(each for each in self.events if isinstance(each, RunStarted) and each.agent == agent)


def planner(listener: Listening, telemetry: Telemetry, principal: str | None = None) -> ChatClient:
    """Return an agent that asks another one, whose principal of its own is a service."""
    options: dict[str, Any] = {"telemetry": telemetry.options, "advisors": [listener]}
    billing = ChatClient(
        ScriptedChatModel([[CALL], "paid"]), name="billing", tools=[whose], principal="service", **options
    )
    asks = ScriptedChatModel([[ToolCall("ask_billing", {"question": "?"})], "done"])
    tools = [billing.as_tool("ask_billing", "Ask billing.")]
    return ChatClient(asks, name="planner", tools=tools, principal=principal, **options)


# Runs.


@pytest.mark.parametrize("mode", MODES)
def test_a_nested_agent_acts_for_the_principal_of_its_caller_and_not_for_its_own_service(mode: str) -> None:
    listener, telemetry = Listening(), Telemetry(capture="SPAN_AND_EVENT")
    run(mode, planner(listener, telemetry).prompt("?", principal="ana"))
    outer, inner = listener.of("planner"), listener.of("billing")
    assert (outer.principal, outer.actors) == ("ana", ())
    assert (inner.principal, inner.actors) == ("ana", ("agent:planner", "tool:ask_billing"))
    assert {each.principal for each in listener.events} == {"ana"}
    spans = {span.name: span.attributes or {} for span in telemetry.spans}
    assert spans["invoke_agent billing"][names.USER_ID] == "ana"
    assert spans["invoke_agent billing"][names.ACTORS] == ("agent:planner", "tool:ask_billing")
    assert names.USER_ID not in spans["execute_tool whose"]
    assert {each.attributes[names.USER_ID] for each in telemetry.events if names.RUN_ID in each.attributes} == {"ana"}
    assert_consistent(telemetry)


@pytest.mark.parametrize(
    ("own", "default", "expected"), [("ana", "service", "ana"), (None, "service", "service"), (None, None, None)]
)
def test_the_principal_of_a_request_precedes_that_of_its_client(
    own: str | None, default: str | None, expected: str | None
) -> None:
    client = ChatClient(ScriptedChatModel([[CALL], "x"]), tools=[whose], principal=default)
    assert client.prompt("?", principal=own).call().tool_results[0].value == str(expected)


def test_an_agent_with_a_principal_shares_the_conversation_of_a_run_without_one() -> None:
    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()))
    billing = ChatClient(
        ScriptedChatModel([[CALL], "paid"]), name="billing", tools=[whose], principal="service", advisors=[memory]
    )
    asks = ScriptedChatModel([[ToolCall("ask_billing", {"question": "?"})], "done"])
    client = ChatClient(asks, tools=[billing.as_tool("ask_billing", "Ask billing.")], advisors=[memory])
    assert client.prompt("?", conversation_id="c").call().tool_results[0].value == "paid"


@pytest.mark.parametrize("principal", ["", " \n", "x" * 257, "\ud800"])
def test_an_invalid_principal_is_refused_wherever_it_is_accepted_without_a_quote(principal: str) -> None:
    client, answer = ChatClient(ScriptedChatModel(["x"])), ChatResponse(AssistantMessage([CALL]))
    places: list[Any] = [
        lambda: ChatClient(ScriptedChatModel(["x"]), principal=principal),
        lambda: client.prompt("?", principal=principal),
        lambda: ToolCallingManager().execute_tool_calls((), answer, tools=[whose], principal=principal),
        lambda: McpApp(McpServer([whose]), token={principal: "a token of 16 characters"}),
        lambda: InMemoryChatMemoryRepository().version("c", principal=principal),
    ]
    for place in places:
        with pytest.raises((ValueError, ChatMemoryError)) as caught:
            place()
        assert not principal.strip() or principal not in str(caught.value)
    check_principal("principal", "x" * 256)


def test_names_of_actors_are_printable_and_a_long_chain_keeps_both_ends() -> None:
    assert actor("client", "a\u202eb\n" + "x" * 200) == "client:a?b?" + "x" * 124
    chain: tuple[str, ...] = ()
    for index in range(40):
        chain = actor_chain(*chain, f"agent:{index}", f"tool:{index}")
    assert len(chain) == 16
    assert chain[:2] == ("agent:0", "tool:0")
    assert chain[8] == "..."
    assert chain[-2:] == ("agent:39", "tool:39")


# Telemetry.


@pytest.mark.parametrize("capture", [None, "SPAN_ONLY", "EVENT_ONLY"])
def test_only_telemetry_that_captures_content_has_the_name_and_the_rest_one_pseudonym(capture: str | None) -> None:
    listener, telemetry = Listening(), Telemetry(capture=capture)
    run("call", planner(listener, telemetry).prompt("?", principal="ana"))
    pseudonym = content.pseudonym_of("ana")
    on_spans = {(each.attributes or {}).get(names.PRINCIPAL_ID) for each in telemetry.named("invoke_agent")}
    on_events = {each.attributes.get(names.PRINCIPAL_ID) for each in telemetry.events}
    assert on_spans == {None if capture == "SPAN_ONLY" else pseudonym}
    assert on_events == {None if capture == "EVENT_ONLY" else pseudonym}
    assert {each.principal for each in listener.events} == {"ana" if capture == "EVENT_ONLY" else pseudonym}
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_without_capture_the_name_is_nowhere(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    listener, telemetry = Listening(), Telemetry()
    client = planner(listener, telemetry, principal=MARKER)
    spec = client.prompt("?")
    response = run(mode, spec)
    emitted = [(each.name, each.attributes, each.status.description) for each in telemetry.spans]
    found = [emitted, [(each.log_record.body, each.log_record.attributes) for each in telemetry.records]]
    found += [[(each.name, each.attributes) for each in telemetry.metrics], caplog.text, repr(listener.events)]
    found += [[each.for_export().model_dump_json() for each in listener.events], client, spec, response]
    found += [RunContext(principal=MARKER), RunContext(principal=MARKER).telemetry]
    assert MARKER not in everything(found)


def test_a_redactor_decides_about_the_name_once_for_a_run_and_never_sees_a_pseudonym() -> None:
    seen: list[tuple[str, Any]] = []

    def redact(name: str, value: Any) -> Any:
        seen.append((name, value))
        return value.upper() if name == names.USER_ID else None

    telemetry = Telemetry(capture=ContentCapture("SPAN_AND_EVENT", redact))
    client = ChatClient(ScriptedChatModel([[CALL], "x"]), tools=[whose], telemetry=telemetry.options)
    client.prompt("?", principal="ana").call()
    assert [each for each in seen if each[0] == names.USER_ID] == [(names.USER_ID, "ana")]
    assert (telemetry.one("invoke_agent assistant").attributes or {})[names.USER_ID] == "ANA"


def test_a_user_id_that_the_application_sets_stays_beside_the_pseudonym_of_the_principal() -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    client = ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options, attributes={"user.id": "u-1"})
    client.prompt("?", principal="ana").call()
    attributes = telemetry.one("invoke_agent assistant").attributes or {}
    assert (attributes[names.USER_ID], attributes[names.PRINCIPAL_ID]) == ("u-1", content.pseudonym_of("ana"))


def test_a_run_that_emits_nothing_makes_no_pseudonym(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(content, "pseudonym_of", made.append)
    ChatClient(ScriptedChatModel([[CALL], "x"]), tools=[whose]).prompt("?", principal="ana").call()
    assert made == []


def test_calls_by_hand_have_who_asked_on_their_own_spans() -> None:
    telemetry = Telemetry(capture="SPAN_ONLY")
    answer = ChatResponse(AssistantMessage([CALL, ToolCall("invented")]))
    ToolCallingManager().execute_tool_calls(
        (), answer, tools=[whose], telemetry=telemetry.options, principal="ana", actors=["agent:planner"]
    )
    spans = [*telemetry.named("execute_tool"), *telemetry.named("refuse_tool")]
    found = [((each.attributes or {})[names.USER_ID], (each.attributes or {})[names.ACTORS]) for each in spans]
    assert found == [("ana", ("agent:planner",))] * 2
    assert_consistent(telemetry)


@pytest.mark.parametrize("era", ["handshake", "modern"])
def test_a_call_of_a_served_tool_has_the_holder_of_the_token_and_the_client_as_it_names_itself(
    era: str, tmp_path: Path
) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    tokens = {name: f"{name} has a token of some length".replace(" ", "-") for name in ("ana", "bob")}
    with (
        AuditTrail(tmp_path / "a.db", content="full") as trail,
        serving_http(
            [whose], app={"token": tokens}, telemetry=telemetry.options, advisors=[AuditAdvisor(trail)]
        ) as url,
    ):
        for name, token in tokens.items():
            assert calling(url, era, "whose", token=token).content[0].text == name
    found = [(call.principal, call.actors) for call in audited(tmp_path / "a.db")]
    assert found == [("ana", ("client:mcp",)), ("bob", ("client:mcp",))]
    spans = [each.attributes or {} for each in telemetry.named("execute_tool")]
    assert [each[names.USER_ID] for each in spans] == ["ana", "bob"]
    assert {each[names.ACTORS] for each in spans} == {("client:mcp",)}
    assert_consistent(telemetry)
