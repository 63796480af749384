"""Runs that call tools of MCP servers, in all modes, over both transports and in both eras."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.mcp.portal_tasks import tasks_left
from tests.mcp.servers import HttpServer, is_alive, raw_server, sdk_server, serving, speak, tools_of
from tests.modes import ALL_MODES, run
from tests.waiting import in_time, patiently
from traced_tools import ChatClient, ConfigurationError, Policy, PolicyAdvisor, Rule, ToolCall, tool
from traced_tools.errors import McpRequestError, McpUnavailable, NeedsEventLoop, ToolDefinitionError
from traced_tools.mcp import McpToolset, session
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import tool_callbacks


def calling(*calls: ToolCall, **options: Any) -> ChatClient:
    """A client whose model makes the calls and then answers."""
    return ChatClient(ScriptedChatModel([list(calls), "done"]), **options)


@pytest.mark.parametrize("transport", [pytest.param("stdio", marks=pytest.mark.slow), "http"])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_run_calls_a_tool_of_a_server_in_every_mode_and_era(
    mode: str, transport: str, era: str, http_server: HttpServer
) -> None:
    telemetry = Telemetry()
    with sdk_server() if transport == "stdio" else http_server.tools() as toolset:
        client = calling(ToolCall("add", {"a": 1, "b": 2}), telemetry=telemetry.options)
        response = run(mode, client.prompt("?", tools=[toolset]))
    assert response.content == "done"
    (result,) = response.tool_results
    assert (result.content, result.outcome) == ("3", "ok")
    assert result.value.structured_content == {"result": 3}
    assert telemetry.parent(telemetry.one("tools/call add")) == "execute_tool add"
    versions = {"modern": "2026-07-28", "handshake": "2025-11-25"}
    attributes = telemetry.one("tools/call add").attributes
    assert attributes is not None and attributes["mcp.protocol.version"] == versions[era]
    telemetry.check_each_ended_once()
    assert tasks_left() == []


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("speaks", [[], ["modern"]], ids=["handshake", "modern"])
def test_no_process_is_left_after_the_block(mode: str, speaks: list[str]) -> None:
    with raw_server(*speaks) as toolset:
        response = run(mode, calling(ToolCall("process_id")).prompt("?", tools=[toolset]))
        process_id = int(response.tool_results[0].content)
        assert is_alive(process_id)
    assert not is_alive(process_id)


def test_an_async_block_ends_the_process_too_and_a_toolset_can_be_used_again() -> None:
    toolset = raw_server()

    async def use() -> int:
        async with toolset:
            response = await calling(ToolCall("process_id")).prompt("?", tools=[toolset]).acall()
        return int(response.tool_results[0].content)

    first, second = asyncio.run(patiently(use())), asyncio.run(patiently(use()))
    assert first != second
    assert not is_alive(first) and not is_alive(second)


def test_an_async_block_that_is_cancelled_ends_the_process() -> None:
    found: list[int] = []
    called = asyncio.Event()

    async def use() -> None:
        async with raw_server() as toolset:
            response = await calling(ToolCall("process_id")).prompt("?", tools=[toolset]).acall()
            found.append(int(response.tool_results[0].content))
            called.set()
            await asyncio.Event().wait()

    async def cancel() -> None:
        task = asyncio.create_task(use())
        await called.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(patiently(cancel()))
    assert not is_alive(found[0])


def test_nothing_is_started_before_the_tools_are_needed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with McpToolset.stdio("touch", str(started), name="lazy"):
        assert not started.exists()


def test_the_block_may_be_entered_more_than_once_and_the_last_end_closes() -> None:
    with raw_server() as toolset:
        with toolset:
            process_id = int(tools_of(toolset)["process_id"].call("{}"))
        assert is_alive(process_id)
    assert not is_alive(process_id)


def test_a_toolset_outside_of_a_block_and_a_tool_after_it_are_errors_that_start_nothing() -> None:
    toolset = raw_server()
    with pytest.raises(ConfigurationError, match="not open: use it in a `with`"):
        tools_of(toolset)
    with toolset:
        echo = tools_of(toolset)["echo"]
    with pytest.raises(McpUnavailable, match="its toolset is closed"):
        echo.call('{"text": "?"}')
    assert tasks_left() == []


def test_threads_and_event_loops_share_one_process_at_once() -> None:
    found: set[str] = set()
    with raw_server() as toolset:
        tools_of(toolset)

        def work(number: int) -> None:
            client = calling(ToolCall("process_id"), ToolCall("echo", {"text": str(number)}))
            response = run(ALL_MODES[number % 4], client.prompt("?", tools=[toolset]))
            found.add(response.tool_results[0].content)
            assert response.tool_results[1].content == f"echo: {number}"

        threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            in_time(thread.join)
    assert len(found) == 1


def test_a_blocking_run_works_in_a_running_event_loop() -> None:
    async def notebook() -> str:
        with raw_server() as toolset:
            return calling(ToolCall("echo", {"text": "hi"})).prompt("?", tools=[toolset]).call().tool_results[0].content

    assert asyncio.run(patiently(notebook())) == "echo: hi"


def test_blocking_code_in_an_async_tool_of_a_blocking_run_is_told_instead_of_waiting_for_itself() -> None:
    with raw_server() as toolset:
        inner = calling(ToolCall("echo", {"text": "hi"}))

        @tool
        async def ask_agent() -> str:
            """Ask an agent, and block the loop meanwhile."""
            return inner.prompt("?", tools=[toolset]).call().content

        result = in_time(lambda: calling(ToolCall("ask_agent")).prompt("?", tools=[ask_agent]).call().tool_results[0])
    assert isinstance(result.error, NeedsEventLoop)
    assert "await acall()" in result.content


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_policy_decides_by_the_servers_hints(mode: str, http_server: HttpServer) -> None:
    rules = [Rule("reads", annotations={"read_only": True}, then="allow")]
    with http_server.tools() as toolset:
        client = calling(ToolCall("add", {"a": 1, "b": 1}), ToolCall("echo", {"text": "x"}))
        policed = client.replace(advisors=[PolicyAdvisor(Policy(rules, default="deny"))])
        response = run(mode, policed.prompt("?", tools=[toolset]))
    assert [result.decision for result in response.tool_results] == ["allowed", "denied"]


def test_tools_know_their_server_and_its_hints(http_server: HttpServer) -> None:
    with http_server.tools() as toolset:
        add = tools_of(toolset)["add"]
    assert add.metadata.source == "tests"
    assert add.metadata.annotations.read_only is True
    assert add.definition.description == "Add two numbers."
    assert add.definition.input_schema["required"] == ["a", "b"]


def test_a_name_that_another_tool_has_as_well_is_an_error_that_names_both_sources(
    era: str, http_server: HttpServer
) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    with http_server.tools() as toolset, raw_server() as other:
        for tools, problem in (
            ([add, toolset], r"add \(local and tests\)"),
            ([toolset, other], r"echo \(tests and raw\)"),
        ):
            with pytest.raises(ToolDefinitionError, match=problem):
                calling().prompt("?", tools=tools).call()
            with pytest.raises(ToolDefinitionError, match=problem):
                tool_callbacks(tools)


def test_the_first_of_several_servers_keeps_its_names_and_the_others_come_before_theirs(
    era: str, http_server: HttpServer
) -> None:
    with McpToolset(http_server.tools(), raw_server()) as both:
        tools = tools_of(both)
        assert tools["raw_echo"].call('{"text": "a"}') == "echo: a"
        assert tools["echo"].call('{"text": "b"}') == "b"
    assert "add" in tools and "raw_garbage" in tools and "garbage" not in tools


def test_a_prefix_is_before_the_name_of_each_tool(http_server: HttpServer) -> None:
    with http_server.tools(prefix=True) as toolset:
        assert all(name.startswith("tests_") for name in tools_of(toolset))


def test_a_filter_chooses_tools_by_server_and_description(http_server: HttpServer) -> None:
    def chosen(server: str, tool: Any) -> bool:
        return server == "tests" and tool.annotations is not None and tool.annotations.read_only_hint is True

    with http_server.tools(filter=chosen) as toolset:
        assert [*tools_of(toolset)] == ["add"]


def test_servers_of_equal_names_and_names_that_are_none_are_errors() -> None:
    with pytest.raises(ConfigurationError, match="given more than once: tests"):
        McpToolset(sdk_server(), sdk_server())
    for name in ("", "local", "a b", "x" * 33):
        with pytest.raises(ConfigurationError, match="the name of an MCP server must have 1 to 32"):
            sdk_server(name=name)
    with pytest.raises(ConfigurationError, match="must begin with http:// or https:// and a host"):
        McpToolset.http("ftp://example.org", name="files")
    for url in ("http://example.org:99999/mcp", "http://example.org:secret/mcp", "http://[::1/mcp"):
        with pytest.raises(ConfigurationError, match="the URL of the MCP server 'files' has an invalid host or port"):
            McpToolset.http(url, name="files")
    for value in ("Bearer secret\n", "Bearer ", "Bearer sécret"):
        with pytest.raises(ConfigurationError, match=r"the header 'Authorization' of .* printable ASCII") as caught:
            McpToolset.http("http://example.org", name="files", headers={"Authorization": value})
        assert "secret" not in str(caught.value)
    for key in ("traceparent", "io.modelcontextprotocol/clientInfo"):
        with pytest.raises(ConfigurationError, match=f"context_keys contains {key}, which has a meaning"):
            sdk_server(context_keys=[key])
    for keys, accepted in (("user", "not one str"), (None, "not None")):
        with pytest.raises(TypeError, match=f"context_keys must be .*{accepted}"):
            sdk_server(context_keys=keys)


def test_a_server_of_the_older_era_is_recognized_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    with raw_server() as toolset:
        first = tools_of(toolset)["counts"].call("{}")
    with raw_server() as toolset:
        second = tools_of(toolset)["counts"].call("{}")
    assert '"server/discover": 1' in first and '"initialize": 1' in first
    assert '"server/discover"' not in second and '"initialize": 1' in second


def test_the_description_of_a_server_of_the_newer_era_is_remembered(
    monkeypatch: pytest.MonkeyPatch, http_server: HttpServer
) -> None:
    telemetry = Telemetry()
    for _ in range(2):
        with http_server.tools() as toolset:
            calling(ToolCall("echo", {"text": "x"}), telemetry=telemetry.options).prompt("?", tools=[toolset]).call()
    assert len(telemetry.named("server/discover")) == 1
    assert [span for span in telemetry.spans if span.name == "initialize"] == []


def test_what_is_remembered_of_a_server_is_forgotten_if_the_server_refuses_it() -> None:
    with raw_server("modern") as toolset:
        tools_of(toolset)
    (described,) = session._eras.values()
    with raw_server() as toolset:
        session._eras[toolset._servers[0].transport.key] = described  # as if the server were an older one now
        with pytest.raises(McpRequestError, match="cannot be read"):
            tools_of(toolset)["does not exist"]
        assert "echo" in tools_of(toolset)


@pytest.mark.parametrize("speaks", [[], ["modern"]], ids=["handshake", "modern"])
def test_all_pages_are_listed_in_the_servers_order(speaks: list[str]) -> None:
    with raw_server(*speaks) as whole, raw_server("pages", *speaks) as paged:
        assert [*tools_of(whole)] == [*tools_of(paged)]


@contextmanager
def server_whose_tools_may_be_kept(transport: str, patch: pytest.MonkeyPatch) -> Iterator[McpToolset]:
    if transport == "stdio":
        yield sdk_server(env={"TTL_MS": "3600000"})
        return
    patch.setenv("TTL_MS", "3600000")
    with serving() as server:
        yield server.tools()


@pytest.mark.parametrize("transport", ["stdio", pytest.param("http", marks=pytest.mark.slow)])
def test_a_tool_that_the_server_adds_is_offered_in_the_next_run(
    transport: str, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_whose_tools_may_be_kept(transport, monkeypatch) as toolset, toolset:
        assert "grown" not in tools_of(toolset)
        tools_of(toolset)["grow"].call("{}")
        in_time(lambda: [None for _ in iter(lambda: "grown" in tools_of(toolset), True)])


@pytest.mark.parametrize(
    ("speaks", "lifetime", "times"),
    [
        pytest.param("auto", "3600000", 1, marks=pytest.mark.slow),
        ("auto", "0", 1),
        pytest.param("handshake", "0", 1, marks=pytest.mark.slow),
    ],
)
def test_tools_are_listed_again_when_their_time_is_over_which_the_older_era_does_not_limit(
    speaks: Any, lifetime: str, times: int
) -> None:
    telemetry = Telemetry()
    with sdk_server(era=speaks, env={"TTL_MS": lifetime}) as toolset:
        for _ in range(3):
            client = ChatClient(ScriptedChatModel(["done"]), telemetry=telemetry.options)
            client.prompt("?", tools=[toolset]).call()
    assert len(telemetry.named("tools/list")) == times


def test_tools_that_are_listed_again_unchanged_stay_the_same_objects(http_server: HttpServer) -> None:
    with http_server.tools() as toolset:
        assert tools_of(toolset)["add"] is tools_of(toolset)["add"]


def test_speaking_both_eras_is_what_the_tests_do(monkeypatch: pytest.MonkeyPatch, http_server: HttpServer) -> None:
    speak("handshake", monkeypatch)
    telemetry = Telemetry()
    with http_server.tools() as toolset:
        ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?", tools=[toolset]).call()
    assert [span.name for span in telemetry.spans if span.name in ("initialize", "server/discover")] == ["initialize"]


def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['mcp'] = sys.modules['mcp_types'] = None; from traced_tools.mcp import McpToolset"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].endswith("McpToolset needs an extra: pip install 'traced_tools[mcp]'")
