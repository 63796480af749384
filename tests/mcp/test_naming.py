"""The names of tools: accepted by providers, different, and independent of all other tools."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traced_tools.core.tool_naming import wire_name
from traced_tools.mcp.naming import McpToolNames

SERVERS = st.permutations(["bank", "weather", "a", "a_b", "a_b_c", "7"]).flatmap(
    lambda names: st.integers(1, len(names)).map(lambda count: names[:count])
)
PARTS = ["pay", "b", "c", "a", "bank", "weather", "_", "-", ".", "/", " ", "7", "é", "\ud800", "x" * 30]
TOOLS = st.lists(st.sampled_from(PARTS), max_size=5).map("_".join) | st.text(max_size=70)


@given(SERVERS, st.booleans(), st.sets(TOOLS, max_size=12))
def test_names_are_accepted_and_no_two_servers_have_one_in_common(
    servers: list[str], keeps: bool, tools: set[str]
) -> None:
    names = McpToolNames(servers, servers[0] if keeps else None)
    found = {(server, tool): names.offered(server, tool) for server in servers for tool in tools}
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name) for name in found.values())
    assert all(wire_name(name) == name for name in found.values())
    assert len({*found.values()}) == len(found)
    # a server may use the names of others as its own
    stolen = {names.offered(thief, name) for name in found.values() for thief in servers if thief != servers[-1]}
    assert stolen.isdisjoint({name for (server, _), name in found.items() if server == servers[-1]})


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("bank", "pay", "pay"),
        ("weather", "pay", "weather_pay"),
        ("weather", "forecast", "weather_forecast"),
        ("bank", "weather_forecast", "bank_weather_forecast"),
        ("git", "hub_log", "_h[0-9a-f]{8}_hub_log"),
        ("git_hub", "log", "git_hub_log"),
        ("bank", "a.b", "a_b_[0-9a-f]{8}"),
        ("bank", "a_b", "a_b"),
        ("bank", "a_b_0123abcd", "a_b_0123abcd_[0-9a-f]{8}"),
        ("weather", "x" * 70, "weather_x{47}_[0-9a-f]{8}"),
    ],
)
def test_the_first_server_keeps_its_names_and_those_of_the_others_begin_with_the_server(
    server: str, tool: str, name: str
) -> None:
    assert re.fullmatch(name, McpToolNames(["bank", "weather", "git", "git_hub"], "bank").offered(server, tool))
