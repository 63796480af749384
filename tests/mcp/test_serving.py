"""Tools that are served to MCP clients: lists, calls and results, in both eras."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import httpx
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import ImageContent, ResourceLink
from pydantic import BaseModel, Field

from tests.mcp.server import PIXEL
from tests.mcp.servers import HttpServer, tools_of
from tests.mcp.serving import (
    audited,
    calling,
    client_of,
    decision_of,
    in_each_era,
    listening,
    serving_http,
    talk,
    text_of,
)
from tests.waiting import patiently, until
from traced_tools import AuditAdvisor, ImagePart, Policy, PolicyAdvisor, Rule, ToolContext, tool
from traced_tools.audit import AuditTrail
from traced_tools.core import InputRequest, PendingInput, ToolAnnotations, ToolDefinition, ToolErrors, ToolMetadata
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import InputRequired, InvalidArguments, ToolDefinitionError
from traced_tools.mcp import McpApp, McpServer, McpToolset
from traced_tools.tools import FunctionToolCallback, augmented
from traced_tools.tools.advice import ToolAdvice


class Place(BaseModel):
    name: str
    height: float = Field(alias="m")


@tool(annotations=ToolAnnotations(read_only=True, open_world=False))
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def place(name: str) -> Place:
    """Return a place."""
    return Place(name=name, m=2.5)


def places() -> list[Place]:
    """Return places."""
    return [Place(name="a", m=1)]


def color() -> Literal["red", "blue"]:
    """Return a color."""
    return "red"


def echo(text: str) -> str:
    """Return the text."""
    return text


def picture() -> ImagePart:
    """Return a picture."""
    return ImagePart(data=PIXEL)


def link() -> ImagePart:
    """Return the URL of a picture."""
    return ImagePart(url="https://example.org/a.png")


def wrong() -> int:
    """Return something else than is promised."""
    return "a word"  # type: ignore[return-value]


def fail(text: str) -> str:
    """Fail with the text."""
    raise LookupError(text)


class Custom:
    """A tool of another kind than a function, with a name that not all providers accept."""

    definition = ToolDefinition(name="files.read", description="Read a file.")
    metadata = ToolMetadata()

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        return f"read {tool_input}"


TOOLS = [add, place, places, color, echo, picture, link, wrong, fail, Custom()]


@pytest.fixture(scope="module")
def url() -> Any:
    with serving_http(TOOLS, name="shop", instructions="Use them well.", ttl=5) as found:
        yield found


def raised_by(server: Any, era: str, *call: Any) -> MCPError:
    """The error that a call of the SDK's client raises."""

    async def failing(client: Client) -> MCPError:
        with pytest.raises(MCPError) as caught:
            await client.call_tool(*call)
        return caught.value

    return talk(server, era, failing)


# Lists.


@in_each_era
def test_tools_are_listed_in_their_order_with_schemas_and_hints(era: str, url: str) -> None:
    listed = talk(url, era, lambda client: client.list_tools())
    names = ["add", "place", "places", "color", "echo", "picture", "link", "wrong", "fail", "files_read"]
    assert [each.name for each in listed.tools] == names
    found = {each.name: each for each in listed.tools}
    assert found["add"].description == "Add two numbers."
    assert found["add"].input_schema["required"] == ["a"]
    assert found["add"].annotations is not None
    assert (found["add"].annotations.read_only_hint, found["add"].annotations.open_world_hint) == (True, False)
    assert found["add"].annotations.destructive_hint is None and found["echo"].annotations is None
    assert found["files_read"].description == "Read a file."


@in_each_era
def test_tools_have_the_schema_of_what_they_return_if_that_is_data(era: str, url: str) -> None:
    listed = talk(url, era, lambda client: client.list_tools())
    schemas = {each.name: each.output_schema for each in listed.tools}
    assert schemas["add"] == {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}
    assert schemas["place"] is not None and [*schemas["place"]["properties"]] == ["name", "m"]
    assert schemas["places"] is not None and schemas["places"]["properties"]["result"]["type"] == "array"
    assert [name for name, schema in schemas.items() if schema is None] == [
        "echo",
        "picture",
        "link",
        "fail",
        "files_read",
    ]


def test_clients_may_keep_the_list_for_the_time_that_it_says(url: str) -> None:
    listed = talk(url, "modern", lambda client: client.list_tools())
    assert (listed.ttl_ms, listed.cache_scope) == (5000, "private")


def test_the_list_is_the_same_text_each_time(url: str) -> None:
    texts = [talk(url, "modern", lambda client: client.list_tools()).model_dump_json() for _ in range(2)]
    assert texts[0] == texts[1]


@in_each_era
def test_the_server_says_who_it_is(era: str, url: str) -> None:
    async def about(client: Client) -> Any:
        return client.server_info, client.instructions, client.protocol_version

    information, instructions, version = talk(url, era, about)
    assert (information.name, instructions) == ("shop", "Use them well.")
    assert version == ("2026-07-28" if era == "modern" else "2025-11-25")


def test_equal_names_and_objects_without_tools_are_errors_before_anything_is_served() -> None:
    with pytest.raises(ToolDefinitionError, match="given more than once: add"):
        McpServer([add, add])
    with pytest.raises(ToolDefinitionError, match="is not a tool"):
        McpServer(42)
    for options in ({"name": 1}, {"instructions": 1}, {"tool_errors": 1}, {"telemetry": 1}, {"advisors": [1]}):
        with pytest.raises(TypeError):
            McpServer(add, **options)
    with pytest.raises(ValueError, match="ttl"):
        McpServer(add, ttl=0)


# The newer era over HTTP, as a client sees it that is written by hand.

ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALL = {"name": "add", "arguments": {"a": 1}}


def ask(
    url: str, method: str, params: Mapping[str, Any], *, version: str = "2026-07-28", **headers: str
) -> httpx.Response:
    meta = {**ENVELOPE, "io.modelcontextprotocol/protocolVersion": version}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    given = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": version}
    given |= {f"Mcp-{name}": value for name, value in headers.items()}
    return httpx.post(url, json=body, headers=given, trust_env=False)


def test_a_server_describes_itself_without_a_handshake_and_a_session(url: str) -> None:
    answer = ask(url, "server/discover", {}, Method="server/discover")
    found = answer.json()["result"]
    assert found["resultType"] == "complete"
    assert (found["supportedVersions"], [*found["capabilities"]]) == (["2026-07-28"], ["tools"])
    assert (found["ttlMs"], found["cacheScope"], found["instructions"]) == (5000, "private", "Use them well.")
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "shop"
    called = ask(url, "tools/call", CALL, Method="tools/call", Name="add")
    assert (called.json()["result"]["resultType"], called.json()["result"]["structuredContent"]) == (
        "complete",
        {"result": 2},
    )
    assert not any("mcp-session-id" in each.headers for each in (answer, called))
    assert ask(url, "ping", {}, Method="ping").json()["error"]["code"] == -32601


@pytest.mark.parametrize(
    "headers", [{}, {"Method": "tools/call"}, {"Name": "add"}, {"Method": "tools/list", "Name": "add"}], ids=str
)
def test_a_call_whose_headers_say_something_else_is_refused(headers: dict[str, str], url: str) -> None:
    answer = ask(url, "tools/call", CALL, **headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)


def test_a_revision_that_the_server_does_not_support_is_refused_with_those_that_it_does(url: str) -> None:
    answer = ask(url, "tools/call", CALL, version="2099-01-01", Method="tools/call", Name="add")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32022)
    assert answer.json()["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2099-01-01"}


# Results.


@in_each_era
def test_results_have_what_a_model_would_read_and_what_the_tool_promises(era: str, url: str) -> None:
    async def results(client: Client) -> list[Any]:
        calls = [("add", {"a": "5"}), ("place", {"name": "a"}), ("places", {}), ("color", {}), ("echo", {"text": "5"})]
        return [await client.call_tool(*each) for each in calls]

    found = talk(url, era, results)
    assert [each.structured_content for each in found] == [
        {"result": 6},
        {"name": "a", "m": 2.5},
        {"result": [{"name": "a", "m": 1.0}]},
        {"result": "red"},
        None,
    ]
    assert [text_of(each) for each in found] == ["6", '{"name":"a","m":2.5}', '[{"name":"a","m":1.0}]', "red", "5"]
    assert not any(each.is_error for each in found)


@in_each_era
def test_images_are_images_and_their_urls_are_links(era: str, url: str) -> None:
    image = calling(url, era, "picture").content[1]
    assert isinstance(image, ImageContent) and b64decode(image.data) == PIXEL and image.mime_type == "image/png"
    found = calling(url, era, "link").content[1]
    assert isinstance(found, ResourceLink) and found.uri == "https://example.org/a.png"


@in_each_era
def test_a_value_that_the_tool_does_not_promise_is_an_error(era: str, url: str) -> None:
    result = calling(url, era, "wrong")
    assert (result.is_error, text_of(result), result.structured_content) == (True, "a word", None)


@in_each_era
def test_invalid_arguments_and_failures_are_results_with_the_text_of_the_error_policy(era: str, url: str) -> None:
    invalid, failed = calling(url, era, "add", {"a": "x"}), calling(url, era, "fail", {"text": "no lamp"})
    assert invalid.is_error and text_of(invalid).startswith("The arguments are invalid: a: must be an integer")
    assert failed.is_error and text_of(failed) == "The tool fail failed: LookupError: no lamp"


@in_each_era
def test_an_unknown_tool_is_an_error_of_the_protocol(era: str, url: str) -> None:
    error = raised_by(url, era, "nope", {})
    assert error.code == -32602
    assert error.message.startswith("There is no tool of that name. Tools you can call: add, place")


@in_each_era
def test_the_error_policy_decides_what_clients_read(era: str) -> None:
    def message(name: str, error: Exception) -> str:
        return "wrong" if isinstance(error, InvalidArguments) else "sorry"

    with serving_http(TOOLS, tool_errors=ToolErrors(message=message)) as url:
        assert text_of(calling(url, era, "fail", {"text": "secret"})) == "sorry"
        assert text_of(calling(url, era, "add", {"a": "secret"})) == "wrong"
    with serving_http(TOOLS, tool_errors=ToolErrors(raise_on=(LookupError,), unknown_tool="raise")) as url:
        error = raised_by(url, era, "fail", {"text": "secret"})
        assert (error.code, "LookupError" in error.message, "secret" in error.message) == (-32603, True, False)
        assert raised_by(url, era, "secret", {}).code == -32602


@in_each_era
def test_an_error_of_the_application_is_no_text_for_the_client(era: str) -> None:
    class Broken(ToolAdvice):
        name, order = "broken", 0

        async def advise_tool(self, call: Any, call_next: Any) -> ToolResult:
            raise RuntimeError("secret")

    with serving_http(TOOLS, advisors=[Broken()]) as url:
        error = raised_by(url, era, "echo", {"text": "a"})
    assert (error.code, error.message) == (-32603, "the request failed")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_tool_that_exits_does_not_end_the_server(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def leave() -> str:
        sys.exit("secret")

    async def leave_soon() -> str:
        sys.exit("secret")

    async def leaving(client: Client) -> tuple[MCPError, str]:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("leave" if kind == "sync" else "leave_soon", {})
        return caught.value, text_of(await client.call_tool("echo", {"text": "still here"}))

    error, answer = talk(McpServer([leave, leave_soon, *TOOLS]).sdk, "modern", leaving)
    assert (error.code, error.message, answer) == (-32603, "the request failed", "still here")
    assert "tried to end the process" in caplog.text
    assert "secret" not in caplog.text


# The pipeline.


@in_each_era
def test_policies_decide_and_the_trail_has_the_records_of_each_call(era: str, tmp_path: Any) -> None:
    closed = Rule("closed", then="deny", tool="echo", reason="It is closed.")
    policy = Policy([Rule("reads", then="allow", tool="add"), closed])
    with AuditTrail(tmp_path / "audit.db") as trail:
        advisors = [PolicyAdvisor(policy), AuditAdvisor(trail)]
        with serving_http(TOOLS, name="shop", advisors=advisors) as url:
            assert text_of(calling(url, era, "add", {"a": 1})) == "2"
            denied = calling(url, era, "echo", {"text": "a"})
            raised_by(url, era, "nope", {})
        assert trail.flush()
    assert denied.is_error and "It is closed." in text_of(denied)
    calls = audited(tmp_path / "audit.db")
    assert [(call.shared_field("tool"), decision_of(call), call.shared_field("agent")) for call in calls] == [
        ("add", "allowed", "shop"),
        ("echo", "denied", "shop"),
        ("_unknown", "unknown_tool", "shop"),
    ]
    assert [call.fields("outcome").get("outcome") for call in calls] == ["ok", None, None]


@in_each_era
def test_what_an_advisor_removes_from_a_result_is_not_in_its_structured_content(era: str) -> None:
    class Redacts(ToolAdvice):
        name, order = "redacts", 0

        async def advise_tool(self, call: Any, call_next: Any) -> ToolResult:
            result: ToolResult = await call_next(call)
            return replace(result, content=result.content.replace("secret", "xxx"))

    with serving_http(TOOLS, advisors=[Redacts()]) as url:
        result = calling(url, era, "place", {"name": "secret"})
    assert result.structured_content == {"name": "xxx", "m": 2.5}
    assert "secret" not in result.model_dump_json()


@in_each_era
def test_tools_get_the_tool_context_and_never_what_the_client_sends_beside_the_arguments(era: str) -> None:
    def about(context: ToolContext) -> str:
        """Return what the context has."""
        return json.dumps({**context, "principal": context.principal})

    with serving_http([about], tool_context={"tenant": "a"}) as url:
        result = talk(url, era, lambda client: client.call_tool("about", {}, meta={"tenant": "b", "x": 1}))
    assert json.loads(text_of(result)) == {"tenant": "a", "principal": None}


@in_each_era
def test_augmented_tools_get_their_additional_arguments(era: str) -> None:
    class Why(BaseModel):
        why: str

    reasons: list[Any] = []
    with serving_http(
        augmented([add], arguments=Why, on_arguments=lambda given: reasons.append(given.arguments.why))
    ) as url:
        assert text_of(calling(url, era, "add", {"a": 1, "why": "a test"})) == "2"
    assert reasons == ["a test"]


@in_each_era
def test_calls_run_side_by_side(era: str) -> None:
    together = threading.Barrier(4)

    def meet() -> str:
        """Return once four calls have met."""
        together.wait(20)
        return "met"

    async def ameet(number: int) -> int:
        """Return once all have begun."""
        begun.append(number)
        if len(begun) == 4:
            all_begun.set()
        await asyncio.to_thread(all_begun.wait, 20)
        return number

    begun: list[int] = []
    all_begun = threading.Event()

    async def four(client: Client) -> list[Any]:
        calls = [client.call_tool("meet", {}) for _ in range(4)]
        calls += [client.call_tool("ameet", {"number": number}) for number in range(4)]
        return await asyncio.gather(*calls)

    with serving_http([meet, ameet]) as url:
        found = talk(url, era, four)
    assert [text_of(each) for each in found] == ["met"] * 4 + ["0", "1", "2", "3"]


@in_each_era
def test_progress_is_sent_to_a_client_that_asks_for_it(era: str) -> None:
    def steps(context: ToolContext) -> str:
        """Report steps, one of which does not grow."""
        for step in (1, 2, 2, 3):
            context.report_progress(step, 3, f"step {step}")
        return "done"

    async def reported(client: Client) -> list[Any]:
        found: list[Any] = []

        async def report(progress: float, total: float | None, message: str | None) -> None:
            found.append((progress, total, message))

        assert text_of(await client.call_tool("steps", {}, progress_callback=report)) == "done"
        assert text_of(await client.call_tool("steps", {})) == "done"
        return found

    with serving_http([steps]) as url:
        for server in (url, McpServer([steps]).sdk):
            assert talk(server, era, reported) == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


@in_each_era
@pytest.mark.parametrize("cursor", ["", "1", "invented"])
def test_a_cursor_that_no_list_gave_is_refused(era: str, cursor: str) -> None:
    async def listed(client: Client) -> int:
        with pytest.raises(MCPError, match="Invalid cursor") as caught:
            await client.list_tools(cursor=cursor)
        return caught.value.code

    assert talk(McpServer([echo]).sdk, era, listed) == -32602


@in_each_era
@pytest.mark.parametrize("name", ["wait", "block"])
def test_a_cancelled_request_cancels_its_tool(era: str, name: str) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> str:
        """Wait until it is cancelled."""
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()
        return "waited"

    def block(context: ToolContext) -> str:
        """Wait, blocking, until it is cancelled."""
        begun.set()
        while not context.cancelled:
            pass
        ended.set()
        return "blocked"

    async def cancelling(client: Client) -> str:
        call = asyncio.ensure_future(client.call_tool(name, {}))
        await asyncio.to_thread(begun.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return text_of(await client.call_tool("echo", {"text": "still here"}))

    with serving_http([wait, block, echo]) as url:
        assert talk(url, era, cancelling) == "still here"
        until(ended.is_set)


@in_each_era
def test_a_tool_that_asks_for_input_is_an_error_that_says_so(era: str) -> None:
    def question() -> str:
        """Ask for input."""
        raise InputRequired(
            PendingInput(requests=(InputRequest(key="name", method="elicitation/create", params={"message": "Who?"}),))
        )

    with serving_http([question]) as url:
        result = calling(url, era, "question")
    assert result.is_error and "it waits for input" in text_of(result)


# Gateways.


@in_each_era
def test_tools_of_other_servers_are_served_with_their_whole_results(era: str, http_server: HttpServer) -> None:
    async def through(client: Client) -> list[Any]:
        calls = [("tests_add", {"a": 1, "b": 2}), ("parts", {}), ("fail", {"text": "no"}), ("add", {"a": 1})]
        return [await client.call_tool(*each) for each in calls]

    with serving_http(
        [add, http_server.tools(prefix=False, filter=_without_add), http_server_prefixed(http_server)]
    ) as url:
        added, parts, failed, own = talk(url, era, through)
    assert added.structured_content == {"result": 3}
    kinds = ["text", "image", "audio", "resource_link", "resource"]
    assert [each.type for each in parts.content] == kinds
    assert failed.is_error and "no" in text_of(failed)
    assert own.structured_content == {"result": 2}


def _without_add(server: str, tool: Any) -> bool:
    return bool(tool.name != "add")


def http_server_prefixed(server: HttpServer) -> McpToolset:
    def is_add(name: str, tool: Any) -> bool:
        return bool(tool.name == "add")

    return McpToolset.http(server.url, name="tests", prefix=True, filter=is_add, timeout=30)


@in_each_era
def test_a_server_that_is_gone_is_no_text_for_the_client_and_named_in_the_log(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    gone = McpToolset.http("http://127.0.0.1:9/mcp", name="gone", timeout=5)

    async def failing(client: Client) -> MCPError:
        with pytest.raises(MCPError) as caught:
            await client.list_tools()
        return caught.value

    with serving_http([gone]) as url:
        assert talk(url, era, failing).message == "the request failed"
    assert "failed: the MCP server 'gone' cannot be reached: httpx2.ConnectError (127.0.0.1:9)" in caplog.text


# Applications.


@in_each_era
def test_an_application_that_knows_nothing_of_lifespans_can_have_the_server_below_it(era: str) -> None:
    from fastapi import FastAPI

    app = FastAPI()
    app.mount("/tools", McpApp(McpServer(TOOLS)))
    app.router.add_route("/mcp", McpApp(McpServer(TOOLS)))
    with listening(app) as url:
        for each in (url, url.replace("/mcp", "/tools/")):
            assert text_of(calling(each, era, "add", {"a": 1})) == "2"


def test_an_application_is_started_and_stopped_by_its_own_lifespan() -> None:
    app = McpApp(McpServer(TOOLS))
    with listening(app) as url:
        assert text_of(calling(url, "handshake", "add", {"a": 1})) == "2"
    with listening(app) as url:  # on another event loop
        assert text_of(calling(url, "handshake", "add", {"a": 1})) == "2"


def test_a_stateless_server_gives_clients_of_the_older_era_no_session() -> None:
    with serving_http(TOOLS, app={"stateless": True}) as url:
        assert text_of(calling(url, "handshake", "add", {"a": 1})) == "2"
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        answer = httpx.post(url, json=body, headers=headers, trust_env=False)
    assert answer.status_code == 200 and "mcp-session-id" not in answer.headers


def test_a_client_that_leaves_cancels_its_call_in_the_newer_era() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        """Wait until it is cancelled."""
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    async def leaving(url: str) -> None:
        client = client_of(url, "modern")
        call = asyncio.create_task(_call_and_stay(client))
        await asyncio.to_thread(begun.wait, 20)
        call.cancel()
        await asyncio.wait([call])

    with serving_http([wait]) as url:
        asyncio.run(patiently(leaving(url)))
        until(ended.is_set)


async def _call_and_stay(client: Client) -> None:
    async with client:
        await client.call_tool("wait", {})


def test_our_own_client_uses_served_tools_as_its_own() -> None:
    with serving_http(TOOLS) as url, McpToolset.http(url, name="shop", timeout=30) as toolset:
        found = tools_of(toolset)
        assert found["add"].call('{"a": 1}') == "2"
        assert found["add"].metadata.annotations.read_only is True
        assert found["place"].call('{"name": "a"}') == '{"name":"a","m":2.5}'


def test_an_inline_tool_runs_on_the_event_loop_and_any_other_plain_function_in_a_thread() -> None:
    def place() -> bool:
        """Return whether this runs on an event loop."""
        return asyncio._get_running_loop() is not None

    with serving_http([FunctionToolCallback(place, metadata=ToolMetadata(inline=True))]) as url:
        assert text_of(calling(url, "modern", "place")) == "true"
    with serving_http([place]) as url:
        assert text_of(calling(url, "modern", "place")) == "false"
