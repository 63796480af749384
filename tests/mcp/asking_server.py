"""An MCP server on the SDK that asks back, over stdio, or with a port as its argument over HTTP."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import (
    AcceptedElicitation,
    Context,
    Elicit,
    ElicitationResult,
    ListRoots,
    MCPServer,
    Resolve,
    Sample,
)
from mcp.server.request_state import RequestStateSecurity
from mcp.server.stdio import stdio_server
from pydantic import BaseModel, Field

STATE = 'ünï·"code" \\ \n\t {"a": [1,  2]} \x7f 🤖'
"""A state that survives only if nobody reads and writes it again."""


class Size(BaseModel):
    centimetres: Annotated[int, Field(ge=1)]


server = MCPServer(
    "asking",
    log_level="CRITICAL",
    request_state_security=RequestStateSecurity(keys=["a key of this server that all of its processes share"]),
)


async def ask_size(article: str) -> Elicit[Size]:
    return Elicit(f"Which size of {article}?", Size)


class Wrapping(BaseModel):
    colour: str = "plain"


async def ask_wrapping() -> Elicit[Wrapping]:
    return Elicit("Which wrapping?", Wrapping)


async def ask_model(text: str) -> Sample:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=f"Shorten: {text}"))
    return Sample([message], max_tokens=500, system_prompt="Be short.", temperature=0.5)


async def ask_roots() -> ListRoots:
    return ListRoots()


@server.tool(structured_output=False)
async def order(article: str, size: Annotated[ElicitationResult[Size], Resolve(ask_size)]) -> str:
    """Order an article."""
    if not isinstance(size, AcceptedElicitation):
        return f"not ordered: {size.action}"
    return f"ordered {article} of {size.data.centimetres} cm"


@server.tool(structured_output=False)
async def wrap(wrapping: Annotated[Wrapping, Resolve(ask_wrapping)]) -> str:
    """Wrap an article."""
    return f"wrapped in {wrapping.colour} paper"


@server.tool(structured_output=False)
async def shorten(text: str, answer: Annotated[types.CreateMessageResult, Resolve(ask_model)]) -> str:
    """Shorten a text."""
    assert isinstance(answer.content, types.TextContent)
    return f"{answer.model} ({answer.stop_reason}): {answer.content.text}"


@server.tool(structured_output=False)
async def folders(found: Annotated[types.ListRootsResult, Resolve(ask_roots)]) -> str:
    """List the folders."""
    return " ".join(str(each.uri) for each in found.roots)


@server.tool(structured_output=False)
async def wizard(
    article: str,
    size: Annotated[Size, Resolve(ask_size)],
    found: Annotated[types.ListRootsResult, Resolve(ask_roots)],
) -> str:
    """Ask for several things at once."""
    return f"{article}, {size.centimetres} cm, {len(found.roots)} folders"


@server.tool(structured_output=False)
async def nag(ctx: Context) -> Any:
    """Ask for ever."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    if ctx.protocol_version is not None and ctx.protocol_version >= "2026":
        params = types.ElicitRequestFormParams(message="Again?", requested_schema=schema)
        return types.InputRequiredResult(input_requests={"again": types.ElicitRequest(params=params)})
    for _ in range(100):
        result = await ctx.session.elicit_form("Again?", schema)
        if result.action != "accept":
            return f"ended: {result.action}"
    return "never"


@server.tool(structured_output=False)
async def sample_often(times: int, ctx: Context) -> str:
    """Sample several times, at a server with a handshake."""
    message = types.SamplingMessage(role="user", content=types.TextContent(text="?"))
    try:
        for _ in range(times):
            await ctx.session.create_message([message], max_tokens=10)
    except Exception as error:
        return f"refused: {error}"
    return "sampled"


async def run_raw() -> None:
    """Serve one tool that asks with a state of its own and returns what it gets back."""

    async def list_tools(*_: Any) -> types.ListToolsResult:
        tool = types.Tool(name="hold", description="Hold a state.", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool], ttl_ms=0, cache_scope="private")

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> Any:
        if params.request_state is None:
            asked = types.ElicitRequestURLParams(message="Sign in.", url="https://example.com/a", elicitation_id="1")
            return types.InputRequiredResult(
                input_requests={"sign in": types.ElicitRequest(params=asked)}, request_state=STATE
            )
        answer = (params.input_responses or {})["sign in"]
        assert isinstance(answer, types.ElicitResult)
        same = params.request_state == STATE
        return types.CallToolResult(content=[types.TextContent(text=f"{answer.action}, same state: {same}")])

    raw: Server[Any] = Server("raw", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await raw.run(read, write, raw.create_initialization_options())


if __name__ == "__main__":
    if sys.argv[1:] == ["raw"]:
        asyncio.run(run_raw())
    elif len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
