"""The names under which the tools of MCP servers are offered.

The names depend on the set of tools alone, so they are the same in whatever order the servers list them, and however
often. Each name is accepted by all providers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from hashlib import sha256
from typing import NamedTuple

from traced_tools.core.tool_naming import wire_name

_DIGITS = 8


class McpToolName(NamedTuple):
    """A tool of an MCP server.

    Args:
        server: the configured name of the server.
        tool: the name that the server uses.
    """

    server: str
    tool: str


def offered_names(tools: Collection[McpToolName], prefixed: Collection[str] = ()) -> dict[McpToolName, str]:
    """Return the name of each tool for the model; all of them are different.

    A tool keeps its name if it can. If several servers have a tool of that name, the names of all of these tools begin
    with those of their servers. Names that are still equal end in a hash of server and tool, except for a name that is
    nobody else's own.

    Args:
        tools: the tools.
        prefixed: the servers whose tools always have the server's name before their own.
    """
    own = {each: f"{each.server}_{each.tool}" if each.server in prefixed else each.tool for each in tools}
    for group in _groups(own):
        if len({each.server for each in group}) > 1:
            own |= {each: f"{each.server}_{each.tool}" for each in group}
    found = {each: wire_name(name) for each, name in own.items()}
    for group in _groups(own):
        exact = [each for each in group if found[each] == own[each]]
        keeps = exact[0] if len(exact) == 1 else None
        found |= {each: _with_hash(each, found[each]) for each in group if each is not keeps}
    return found


def _groups(names: dict[McpToolName, str]) -> list[list[McpToolName]]:
    """Return the groups of tools whose names are the same for providers."""
    by_name: defaultdict[str, list[McpToolName]] = defaultdict(list)
    for each, name in names.items():
        by_name[wire_name(name)].append(each)
    return [group for group in by_name.values() if len(group) > 1]


def _with_hash(tool: McpToolName, name: str) -> str:
    digest = sha256(f"{tool.server}/{tool.tool}".encode()).hexdigest()[:_DIGITS]
    return f"{name[: 64 - _DIGITS - 1]}_{digest}"
