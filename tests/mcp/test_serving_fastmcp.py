"""Served tools as the client of FastMCP sees them."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from tests.mcp.serving import SERVED, in_each_era, serving_http
from tests.waiting import patiently
from traced_tools import ToolContext, tool

# FastMCP is imported when a test runs: each process that collects the tests would else import it.
pytestmark = pytest.mark.skipif(find_spec("fastmcp") is None, reason="needs fastmcp (the extra dev)")


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail(text: str) -> str:
    """Fail with the text."""
    raise ValueError(text)


def steps(context: ToolContext) -> str:
    """Report steps."""
    for step in (1, 2):
        context.report_progress(step, 2)
    return "done"


@tool(requires_approval=True)
def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


async def use(target: Any, era: str) -> dict[str, Any]:
    reported: list[float] = []

    async def approve(message: str, *_: Any) -> dict[str, Any]:
        assert "May the tool pay run" in message
        return {"approve": True}

    async def report(progress: float, *_: Any) -> None:
        reported.append(progress)

    from fastmcp import Client
    from fastmcp.exceptions import ToolError

    mode: Any = "legacy" if era == "handshake" else "auto"
    async with Client(target, mode=mode, elicitation_handler=approve, progress_handler=report) as client:
        names = [each.name for each in await client.list_tools()]
        found: dict[str, Any] = {"names": names, "paid": (await client.call_tool("pay", {"to": "Ana"})).content[0].text}
        with pytest.raises(ToolError) as caught:
            await client.call_tool("fail", {"text": "no lamp"})
        found["failed"] = str(caught.value)
        if "add" in names:
            found["added"] = (await client.call_tool("add", {"a": 1, "b": 2})).structured_content
            await client.call_tool("steps", {})
    return {**found, "reported": reported}


@in_each_era
def test_fastmcps_client_uses_served_tools_over_http(era: str) -> None:
    with serving_http([add, fail, steps, pay]) as url:
        found = asyncio.run(patiently(use(url, era)))
    assert found == {
        "names": ["add", "fail", "steps", "pay"],
        "paid": "paid Ana",
        "failed": "The tool fail failed: ValueError: no lamp",
        "added": {"result": 3},
        "reported": [1, 2],
    }


@pytest.mark.slow
@in_each_era
def test_fastmcps_client_uses_served_tools_over_stdio(era: str) -> None:
    from fastmcp.client.transports import StdioTransport

    found = asyncio.run(patiently(use(StdioTransport(sys.executable, [SERVED, "stdio"]), era)))
    assert (found["paid"], found["failed"]) == ("paid 5 to Ana", "The tool fail failed: ValueError: no lamp")
