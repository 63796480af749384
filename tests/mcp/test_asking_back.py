"""Servers that ask back: who answers, what policies decide, what is recorded, and runs that pause for input."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.audit.draft_trails import KeptTrail
from tests.captured import Telemetry
from tests.markers import MARKER
from tests.mcp.asking_server import STATE
from tests.mcp.portal_tasks import tasks_left
from tests.mcp.servers import ASKING, HttpServer, in_each_mode_and_era, raw_server, serving, tools_of
from tests.mcp.test_runs import calling
from tests.modes import MODES, arun, run
from tests.observe.exported import Wiretap
from tests.waiting import patiently
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    Approve,
    AssistantMessage,
    AuditAdvisor,
    ChatClient,
    LoopLimits,
    Policy,
    PolicyAdvisor,
    Reject,
    Rule,
    ToolCall,
    Usage,
    tool,
)
from traced_tools.core import Provide, Undecided
from traced_tools.mcp import McpToolset, Sampling
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel

ORDER = ToolCall("order", {"article": "lamp"}, id="o")
SHORTEN = ToolCall("shorten", {"text": "a long text"}, id="s")


@pytest.fixture(scope="module")
def shop() -> Iterator[HttpServer]:
    """The server that asks back, over HTTP."""
    with serving(ASKING) as server:
        yield server


def shop_process(*args: str, **options: Any) -> McpToolset:
    """Return the tools of the server that asks back, over stdio."""
    return McpToolset.stdio(sys.executable, ASKING, *args, name="tests", timeout=30, **options)


def enter(message: str, schema: Any) -> dict[str, int]:
    assert message == "Which size of lamp?"
    assert schema["required"] == ["centimetres"]
    return {"centimetres": 4}


async def enter_async(message: str, schema: Any) -> dict[str, int]:
    await asyncio.sleep(0)
    return enter(message, schema)


def content_of(mode: str, toolset: McpToolset, call: ToolCall, **options: Any) -> str:
    """Run a call of a tool and return its result."""
    with toolset:
        return run(mode, calling(call, **options).prompt("?", tools=[toolset])).tool_results[0].content


@pytest.mark.parametrize("elicit", [enter, enter_async])
@in_each_mode_and_era
def test_a_function_answers_for_the_user(shop: HttpServer, mode: str, era: str, elicit: Any) -> None:
    assert content_of(mode, shop.tools(elicit=elicit), ORDER) == "ordered lamp of 4 cm"
    assert tasks_left() == []


@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_an_async_function_runs_on_the_event_loop_of_the_run(shop: HttpServer, mode: str, era: str) -> None:
    loops: list[Any] = []

    async def elicit(*_: Any) -> dict[str, int]:
        loops.append(asyncio.get_running_loop())
        return {"centimetres": 1}

    async def on_own_loop() -> None:
        with shop.tools(elicit=elicit) as toolset:
            await arun(mode, calling(ORDER).prompt("?", tools=[toolset]))
        assert loops == [asyncio.get_running_loop()]

    asyncio.run(patiently(on_own_loop()))


@in_each_mode_and_era
def test_a_user_may_decline(shop: HttpServer, mode: str, era: str) -> None:
    assert content_of(mode, shop.tools(elicit=lambda *_: None), ORDER) == "not ordered: decline"


@in_each_mode_and_era
def test_a_user_may_leave_a_form_empty_that_requires_nothing(shop: HttpServer, mode: str, era: str) -> None:
    assert content_of(mode, shop.tools(elicit=lambda *_: {}), ToolCall("wrap")) == "wrapped in plain paper"


def invalid(*_: Any) -> Any:
    return {"centimetres": "many"}


def failing(*_: Any) -> Any:
    raise RuntimeError(MARKER)


@pytest.mark.parametrize("elicit", [invalid, failing, lambda *_: "a text"])
@in_each_mode_and_era
def test_a_function_that_fails_or_returns_no_answer_cancels_the_question(
    shop: HttpServer, mode: str, era: str, elicit: Any
) -> None:
    assert content_of(mode, shop.tools(elicit=elicit), ORDER) == "not ordered: cancel"


@in_each_mode_and_era
def test_a_model_answers_within_limits_and_has_a_span_of_its_own(shop: HttpServer, mode: str, era: str) -> None:
    model = ScriptedChatModel(["short"])
    telemetry = Telemetry()
    toolset = shop.tools(sample=Sampling(model, max_tokens=100))
    assert content_of(mode, toolset, SHORTEN, telemetry=telemetry.options) == "scripted (endTurn): short"
    (request,) = model.requests
    assert [each.role for each in request.messages] == ["system", "user"]
    assert (request.options.max_tokens, request.options.temperature) == (100, 0.5)
    assert telemetry.parent(telemetry.one("execute_tool sampling/createMessage")) == "execute_tool shorten"
    chats = [span for span in telemetry.spans if span.name == "chat scripted"]
    assert [telemetry.parent(span) for span in chats].count("execute_tool sampling/createMessage") == 1
    telemetry.check_each_ended_once()


@in_each_mode_and_era
def test_folders_are_listed_as_urls(shop: HttpServer, mode: str, era: str) -> None:
    toolset = shop.tools(roots=lambda: [Path("/srv/a b"), "/tmp", "file:///data"])
    assert content_of(mode, toolset, ToolCall("folders")) == "file:///srv/a%20b file:///tmp file:///data"


@pytest.mark.parametrize("found", [["/srv"], Undecided()], ids=["folders", "undecided"])
def test_a_server_with_handshake_may_ask_for_folders_outside_of_calls(found: Any) -> None:
    with raw_server("wants_folders", roots=lambda: found) as toolset:
        answer = json.loads(tools_of(toolset)["echo"].definition.description)
    roots = [] if isinstance(found, Undecided) else [{"uri": "file:///srv"}]
    assert (answer["id"], answer["result"]) == ("folders", {"roots": roots})


@in_each_mode_and_era
def test_a_server_that_asks_for_ever_is_stopped_after_ten_rounds(shop: HttpServer, mode: str, era: str) -> None:
    asked: list[str] = []

    def elicit(message: str, schema: Any) -> dict[str, Any]:
        asked.append(message)
        return {}

    content = content_of(mode, shop.tools(elicit=elicit), ToolCall("nag"))
    assert "asked back more than 10 times during one call" in content
    assert len(asked) == 10


@pytest.mark.parametrize("era", ["handshake"], indirect=True)
def test_samplings_of_one_call_are_limited(shop: HttpServer, era: str) -> None:
    model = ScriptedChatModel(["a"] * 5)
    toolset = shop.tools(sample=Sampling(model, max_requests=2))
    assert "more than 2 samplings" in content_of("call", toolset, ToolCall("sample_often", {"times": 5}))
    assert len(model.requests) == 2


@pytest.mark.parametrize("era", ["handshake"], indirect=True)
def test_a_server_with_handshake_is_told_what_nobody_answers(shop: HttpServer, era: str) -> None:
    for call, options in ((ORDER, {}), (SHORTEN, {}), (ToolCall("folders"), {})):
        with shop.tools(**options) as toolset:
            (result,) = calling(call).prompt("?", tools=[toolset]).call().tool_results
            assert result.outcome == "error"
    undecided = content_of("call", shop.tools(elicit=lambda *_: Undecided()), ORDER)
    assert undecided == "nobody answers the request (error -1)"


@pytest.mark.parametrize("era", ["handshake"], indirect=True)
def test_calls_that_run_at_once_get_the_answers_to_their_own_questions(shop: HttpServer, era: str) -> None:
    def elicit(message: str, schema: Any) -> dict[str, int]:
        return {"centimetres": int(message.rpartition(" ")[2].rstrip("?"))}

    calls = [ToolCall("order", {"article": str(number)}, id=f"c{number}") for number in range(1, 6)]
    telemetry = Telemetry()
    with shop.tools(elicit=elicit) as toolset:
        spec = ChatClient(ScriptedChatModel([calls, "done"]), telemetry=telemetry.options).prompt("?", tools=[toolset])
        response = run("acall", spec)
    assert [each.content for each in response.tool_results] == [f"ordered {n} of {n} cm" for n in range(1, 6)]
    asked = [span for span in telemetry.spans if span.name == "execute_tool elicitation/create"]
    assert [(span.attributes or {})["gen_ai.tool.call.id"].partition("/")[0] for span in asked] == [
        call.id for call in calls
    ]


# Policies, approvals, audit.


@in_each_mode_and_era
def test_policies_decide_about_the_questions_of_servers(shop: HttpServer, mode: str, era: str) -> None:
    rules = [Rule("ask-nobody", tool="elicitation/create", then="deny"), Rule("rest", tool="*", then="allow")]
    asked: list[Any] = []
    content = content_of(
        mode,
        shop.tools(elicit=lambda *given: asked.append(given)),
        ORDER,
        advisors=[PolicyAdvisor(Policy(rules))],
    )
    assert (content, asked) == ("not ordered: decline", [])


@in_each_mode_and_era
def test_a_policy_that_refuses_a_sampling_fails_the_call(shop: HttpServer, mode: str, era: str) -> None:
    model = ScriptedChatModel([])
    rules = [Rule("no", tool="sampling/createMessage", then="deny"), Rule("rest", tool="*", then="allow")]
    content = content_of(mode, shop.tools(sample=model), SHORTEN, advisors=[PolicyAdvisor(Policy(rules))])
    refusals = {
        "modern": "McpRequestError: the MCP server 'tests' asked for sampling/createMessage, which was refused",
        "handshake": "nobody answers the request (error -1)",
    }
    assert content.endswith(refusals[era])
    assert model.requests == []


@in_each_mode_and_era
def test_a_policy_may_have_a_person_approve_a_question(shop: HttpServer, mode: str, era: str) -> None:
    rules = [
        Rule("careful", tool="elicitation/create", then="require_approval"),
        Rule("rest", tool="*", then="allow"),
    ]
    asked: list[Any] = []

    def decide(request: Any) -> Any:
        asked.append((request.tool, request.source, request.args["message"]))
        return Approve(by="ana")

    advisors = [PolicyAdvisor(Policy(rules)), ApprovalAdvisor(decide)]
    assert content_of(mode, shop.tools(elicit=enter), ORDER, advisors=advisors) == "ordered lamp of 4 cm"
    assert asked == [("elicitation/create", "tests", "Which size of lamp?")]


@in_each_mode_and_era
def test_the_trail_has_the_questions_of_servers_as_calls_in_a_nested_run(shop: HttpServer, mode: str, era: str) -> None:
    trail = KeptTrail()
    content_of(mode, shop.tools(elicit=enter), ORDER, advisors=[AuditAdvisor(trail)])  # type: ignore[arg-type]
    first, *_ = trail.of("intent")
    asked = [each for each in trail.drafts if each.subject.tool == "elicitation/create"]
    assert [each.kind for each in asked] == ["intent", "decision", "outcome"]
    assert asked[0].fields["source"] == "tests"
    assert asked[0].subject.parent_run_id == first.subject.run_id
    assert asked[0].subject.call_id is not None and asked[0].subject.call_id.startswith("o/")


# Runs that pause.


@pytest.mark.parametrize("options", [{}, {"elicit": lambda *_: Undecided()}])
@pytest.mark.parametrize("mode", MODES)
def test_a_run_pauses_if_nobody_can_answer_now_and_resumes_with_another_toolset(
    shop: HttpServer, mode: str, options: dict[str, Any]
) -> None:
    with shop.tools(**options) as toolset:
        paused = run(mode, calling(ORDER).prompt("?", tools=[toolset]))
    assert (paused.stop_reason, tasks_left()) == ("awaiting_input", [])
    (call,) = paused.pending
    assert call.input is not None and paused.state is not None
    (question,) = call.input.requests
    assert (question.method, question.message) == ("elicitation/create", "Which size of lamp?")
    trail, telemetry = KeptTrail(), Telemetry()
    with shop.tools() as toolset:
        resuming = ChatClient(
            ScriptedChatModel(["done"]),
            advisors=[AuditAdvisor(trail)],  # type: ignore[arg-type]
            telemetry=telemetry.options,
        )
        decisions = {"o": Provide({question.key: {"centimetres": 7}}, by="ana")}
        response = run(mode, resuming.resume(paused.state, decisions, tools=[toolset]))
    assert response.tool_results[0].content == "ordered lamp of 7 cm"
    asked = [each for each in trail.drafts if each.subject.tool == "elicitation/create"]
    assert [each.fields.get("decision", each.kind) for each in asked] == ["intent", "approved", "outcome"]
    assert asked[1].contents["by"].text == "ana"
    telemetry.check_each_ended_once()


@pytest.mark.slow
def test_a_server_gets_its_state_back_byte_for_byte_from_another_process(shop: HttpServer, tmp_path: Path) -> None:
    """The state of the run goes through a file, and the process that resumes knows nothing else."""
    with shop_process("raw") as toolset:
        paused = calling(ToolCall("hold", {}, id="h")).prompt("?", tools=[toolset]).call()
    (call,) = paused.pending
    assert call.input is not None and call.input.state == STATE
    assert call.input.requests[0].url == "https://example.com/a"
    (tmp_path / "state.json").write_text(paused.state or "", "utf-8")
    program = f"""
import sys
from traced_tools import ChatClient
from traced_tools.core import Provide
from traced_tools.mcp import McpToolset
from traced_tools.testing import ScriptedChatModel

with McpToolset.stdio(sys.executable, {ASKING!r}, "raw", name="tests") as toolset:
    state = open("state.json", encoding="utf-8").read()
    decisions = {{"h": Provide({{"sign in": {{}}}})}}
    response = ChatClient(ScriptedChatModel(["done"])).resume(state, decisions, tools=[toolset]).call()
    print(response.tool_results[0].content)
"""
    printed = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert printed.stdout == "accept, same state: True\n"


def test_a_question_without_an_answer_is_asked_again_when_the_run_resumes(shop: HttpServer) -> None:
    call = ToolCall("wizard", {"article": "lamp"}, id="w")
    with shop.tools(elicit=lambda *_: Undecided(), roots=lambda: ["/a", "/b"]) as toolset:
        paused = calling(call).prompt("?", tools=[toolset]).call()
        assert paused.pending[0].input is not None and paused.state is not None
        questions = {each.method: each.key for each in paused.pending[0].input.requests}
        assert set(questions) == {"elicitation/create", "roots/list"}
        decisions = {"w": Provide({questions["elicitation/create"]: {"centimetres": 3}})}
        resuming = ChatClient(ScriptedChatModel(["done"]))
        response = resuming.resume(paused.state, decisions, tools=[toolset]).call()
    assert response.tool_results[0].content == "lamp, 3 cm, 2 folders"


def test_rounds_before_and_after_a_pause_are_counted_together(shop: HttpServer) -> None:
    with shop.tools() as toolset:
        response = calling(ToolCall("nag", {}, id="n")).prompt("?", tools=[toolset]).call()
        rounds = []
        while response.stop_reason == "awaiting_input":
            assert response.pending[0].input is not None and response.state is not None
            rounds.append(response.pending[0].input.round)
            resuming = ChatClient(ScriptedChatModel(["done"]))
            response = resuming.resume(response.state, {"n": Provide({"again": {}})}, tools=[toolset]).call()
    assert rounds == [*range(1, 11)]
    assert "asked back more than 10 times" in response.tool_results[0].content


def test_the_loop_goes_on_if_who_was_asked_refuses(shop: HttpServer) -> None:
    with shop.tools() as toolset:
        paused = calling(ORDER).prompt("?", tools=[toolset]).call()
        resuming = ChatClient(ScriptedChatModel(["done"]))
        assert paused.state is not None
        response = resuming.resume(paused.state, {"o": Reject("no sizes", by="ana")}, tools=[toolset]).call()
    assert (response.content, response.tool_results[0].decision) == ("done", "rejected")


@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_a_question_ends_with_its_call(shop: HttpServer, mode: str, era: str) -> None:
    ended: list[str] = []

    async def cancelled_while_asking() -> None:
        asked = asyncio.Event()

        async def never(*_: Any) -> None:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("the question")

        with shop.tools(elicit=never) as toolset:
            task = asyncio.create_task(arun(mode, calling(ORDER).prompt("?", tools=[toolset])))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended == ["the question"]

    asyncio.run(patiently(cancelled_while_asking()))
    assert tasks_left() == []


# What leaves this process.


def hiding(*_: Any) -> dict[str, Any]:
    return {"centimetres": 4, "note": MARKER}


@in_each_mode_and_era
def test_no_question_and_no_answer_leaves_with_capture_off(
    shop: HttpServer, mode: str, era: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with Wiretap(caplog, capsys) as wiretap:
        options = {"elicit": failing, "sample": ScriptedChatModel([MARKER]), "roots": lambda: [f"/srv/{MARKER}"]}
        with shop.tools(**options) as toolset:
            calls = [
                ToolCall("order", {"article": MARKER}, id="1"),
                ToolCall("shorten", {"text": MARKER}, id="2"),
                ToolCall("folders", {}, id="3"),
            ]
            client = ChatClient(ScriptedChatModel([calls, "done"]), telemetry=wiretap.telemetry.options)
            response = wiretap.run(client.prompt("?", tools=[toolset]), mode)
        contents = [each.content for each in response.tool_results]
        assert MARKER in contents[1] and MARKER.lower() in contents[2].lower()
        wiretap.check()


def test_what_a_model_of_a_sampling_used_counts_for_the_budget_of_the_run(shop: HttpServer) -> None:
    answer = ChatResponse(AssistantMessage("short"), usage=Usage(input_tokens=900, output_tokens=200))
    with shop.tools(sample=ScriptedChatModel([answer])) as toolset:
        client = calling(SHORTEN, limits=LoopLimits(max_tokens=1000))
        response = client.prompt("?", tools=[toolset]).call()
    assert response.stop_reason == "token_budget"
    assert response.tool_results[0].content == "scripted (endTurn): short"


# What could go wrong.


def test_answers_to_some_of_the_questions_are_kept_until_the_others_are_answered(shop: HttpServer) -> None:
    call = ToolCall("wizard", {"article": "lamp"}, id="w")
    with shop.tools(roots=lambda: Undecided()) as toolset:
        response = calling(call).prompt("?", tools=[toolset]).call()
        assert response.pending[0].input is not None
        keys = {each.method: each.key for each in response.pending[0].input.requests}
        for answers in ({keys["elicitation/create"]: {"centimetres": 3}}, {keys["roots/list"]: ["/a", "/b"]}):
            assert (response.stop_reason, response.state is not None) == ("awaiting_input", True)
            resuming = ChatClient(ScriptedChatModel(["done"]))
            decisions = {"w": Provide(answers, by="ana")}
            response = resuming.resume(response.state or "", decisions, tools=[toolset]).call()
    assert response.tool_results[0].content == "lamp, 3 cm, 2 folders"


def test_a_policy_denies_an_answer_that_somebody_gives_later(shop: HttpServer) -> None:
    rules = [Rule("no", tool="elicitation/create", then="deny"), Rule("rest", tool="*", then="allow")]
    policy = PolicyAdvisor(Policy(rules))
    with shop.tools() as toolset:
        paused = calling(ORDER).prompt("?", tools=[toolset]).call()
        assert paused.pending[0].input is not None and paused.state is not None
        (question,) = paused.pending[0].input.requests
        resuming = ChatClient(ScriptedChatModel(["done"]), advisors=[policy])
        decisions = {"o": Provide({question.key: {"centimetres": 7}})}
        response = resuming.resume(paused.state, decisions, tools=[toolset]).call()
    assert response.tool_results[0].content == "not ordered: decline"


@in_each_mode_and_era
def test_what_an_advisor_makes_of_an_answer_is_what_the_server_gets(shop: HttpServer, mode: str, era: str) -> None:
    class Redact(Advisor):
        name, order = "redact", 500

        async def advise_tool(self, call: Any, call_next: Any) -> Any:
            result = await call_next(call)
            return replace(result, content=texts[call.name]) if call.name in texts else result

    texts = {"elicitation/create": '{"centimetres": 1}', "sampling/createMessage": "[removed]", "roots/list": "[]"}
    options = {"elicit": enter, "sample": ScriptedChatModel(["secret"]), "roots": lambda: ["/secret"]}
    calls = [ORDER, SHORTEN, ToolCall("folders", {}, id="f")]
    with shop.tools(**options) as toolset:
        client = ChatClient(ScriptedChatModel([calls, "done"]), advisors=[Redact()])
        response = run(mode, client.prompt("?", tools=[toolset]))
    contents = [each.content for each in response.tool_results]
    assert contents == ["ordered lamp of 1 cm", "unknown (endTurn): [removed]", ""]


@pytest.mark.parametrize("found", ["/tmp", ["http://example.com/a"], [3]])
def test_roots_that_are_no_list_of_folders_are_not_sent(shop: HttpServer, found: Any) -> None:
    assert content_of("call", shop.tools(roots=lambda: found), ToolCall("folders")) == ""


def test_a_server_of_both_eras_is_spoken_to_with_the_handshake_if_wanted(shop: HttpServer) -> None:
    telemetry = Telemetry()
    toolset = shop.tools(elicit=enter, era="handshake")
    assert content_of("call", toolset, ORDER, telemetry=telemetry.options) == "ordered lamp of 4 cm"
    assert (telemetry.one("tools/call order").attributes or {})["mcp.protocol.version"] == "2025-11-25"
    with pytest.raises(ValueError, match="era must be one of auto, handshake"):
        shop.tools(era="old")


def test_a_tool_that_asks_while_its_call_waits_works_with_the_handshake_alone(shop: HttpServer) -> None:
    contents = []
    for era in ("auto", "handshake"):
        toolset = shop.tools(sample=ScriptedChatModel(["a"]), era=era)
        contents.append(content_of("call", toolset, ToolCall("sample_often", {"times": 1})))
    assert contents[0].startswith("refused: Cannot send 'sampling/createMessage'")
    assert contents[1] == "sampled"


def test_a_plain_with_block_in_an_async_tool_of_a_blocking_run_is_refused(shop: HttpServer) -> None:
    @tool
    async def nested() -> str:
        """Open a toolset."""
        with shop.tools():
            return "opened"

    response = ChatClient(ScriptedChatModel([ToolCall("nested"), "done"]), tools=[nested]).prompt("?").call()
    assert "write `async with` in the tool" in response.tool_results[0].content
    assert content_of("call", shop.tools(elicit=enter), ORDER) == "ordered lamp of 4 cm"


async def offers_none(server: str, found: Any) -> bool:
    return False


def test_a_filter_must_be_plain_and_return_a_bool(shop: HttpServer) -> None:
    with pytest.raises(TypeError, match="filter must be a plain function"):
        shop.tools(filter=offers_none)
    with shop.tools(filter=lambda *_: "yes") as toolset, pytest.raises(TypeError, match="what filter returns"):
        calling(ORDER).prompt("?", tools=[toolset]).call()
