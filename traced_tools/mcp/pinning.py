"""The file of pinned tools: digests of what MCP servers say about their tools."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rfc8785
from mcp_types import Tool

from traced_tools.core.checks import expect
from traced_tools.errors import ConfigurationError, McpToolsChanged

_PINNED = ("description", "input_schema", "output_schema", "annotations")


class PinFile:
    """Compares the tools of servers with the digests in a file, which is written when a server is first seen.

    A digest covers one of the parts of a tool that models and policies rely on: its description, the schemas of its
    arguments and results, its hints. A tool that the server has removed is no change.

    Args:
        path: the file, JSON text.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        expect("pin", path, (str, os.PathLike), "the path of a file")
        self._path = Path(path)

    def check(self, server: str, tools: Sequence[Tool]) -> None:
        """Compare the tools of a server with the file, or add them to it if it doesn't have the server.

        Raises:
            McpToolsChanged: if the server has a tool that the file does not have, or that has changed.
            ConfigurationError: if the file cannot be read.
        """
        servers = self._read()
        digests = {tool.name: _digests(tool) for tool in tools}
        if server not in servers:
            self._write({**servers, server: digests})
            return
        known: dict[str, Any] = servers[server]
        if changes := [change for name, found in digests.items() for change in _changes(name, known.get(name), found)]:
            raise McpToolsChanged(server, self._path.name, changes)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return {}
        try:
            servers = json.loads(text)["servers"]
            if not all(isinstance(tools, dict) for tools in servers.values()):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigurationError(f"{self._path} is not a file of pinned tools: restore it, or delete it") from None
        return dict(servers)

    def _write(self, servers: dict[str, dict[str, Any]]) -> None:
        text = json.dumps({"servers": servers}, indent=2, sort_keys=True)
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        unfinished.write_text(f"{text}\n", "utf-8")
        unfinished.replace(self._path)


def _digests(tool: Tool) -> dict[str, str]:
    parts = tool.model_dump(mode="json", exclude_none=True, include={*_PINNED})
    return {part: _digest(parts[part]) for part in _PINNED if part in parts}


def _digest(value: Any) -> str:
    try:
        canonical = rfc8785.dumps(value)
    except (ValueError, RecursionError):  # such as an integer beyond 2**53
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(canonical).hexdigest()


def _changes(name: str, known: Any, found: dict[str, str]) -> list[str]:
    if not isinstance(known, dict):
        return [f"{name}: new"]
    return [f"{name}: {part}" for part in _PINNED if known.get(part) != found.get(part)]
