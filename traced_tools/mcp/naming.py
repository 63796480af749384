"""The names under which the tools of MCP servers are offered.

A name depends on the servers of its toolset and on the tool itself, and on no other tool. So whatever a server lists,
and whenever, it changes no other name: neither one in a conversation, nor one in a rule of a policy. Each name is
accepted by all providers.

The names of a server's tools begin with its own name, except for those of one server, which keeps its names. A server
owns all names that begin with its own name, so no server can take the name of another one's tool.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from traced_tools.core.tool_naming import unmistakable_name, wire_name


class McpToolNames:
    """The names of the tools of a toolset.

    The first server keeps its names. The names of the other servers' tools begin with the name of their server.

    Args:
        servers: the configured names of the servers.
        unprefixed: the server whose tools keep their names; None if there is none.
    """

    def __init__(self, servers: Iterable[str], unprefixed: str | None) -> None:
        self._unprefixed = unprefixed
        self._owners = {start: server for server in servers for start in _starts(server)}

    def offered(self, server: str, tool: str) -> str:
        """Return the name for the model of the tool that its server calls `tool`."""
        own = [tool] if server == self._unprefixed else []
        names = [unmistakable_name(name) for name in (*own, *(f"{start}{tool}" for start in _starts(server)))]
        return next((name for name in names if self._owner(name) == server), names[-1])

    def _owner(self, name: str) -> str | None:
        """Return the server that a name is of: the longest beginning counts, because `a` and `a_b` may be servers."""
        start = max((start for start in self._owners if name.startswith(start)), key=len, default=None)
        return self._unprefixed if start is None else self._owners[start]


def _starts(server: str) -> tuple[str, str]:
    """Return how names of a server's tools begin: usually, and if that is how the names of another server begin."""
    return wire_name(f"{server}_"), f"_h{sha256(server.encode()).hexdigest()[:8]}_"
