"""The file of pinned tools: digests of what MCP servers say about their tools."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

import rfc8785
from mcp_types import Tool

from traced_tools.core.checks import expect
from traced_tools.core.disk import replace_file
from traced_tools.core.file_access import warn_of_access
from traced_tools.errors import ConfigurationError, McpToolsChanged
from traced_tools.observe.sanitize import safe_identifier

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

OnChange = Literal["error", "warn"]
"""What follows if a tool is new or has changed: no run begins, or the log and the audit trail say so."""
_LOG = logging.getLogger(__name__)
_NEW = "new"
_PINNED = ("title", "description", "input_schema", "output_schema", "annotations")


class PinFile:
    """Compares the tools of servers with the digests in a file, which is written when a server is first seen.

    A digest covers one of the parts of a tool that models and policies rely on: its description, the schemas of its
    arguments and results, its hints. A tool that the server has removed does not count as a change.

    Args:
        path: the file, JSON text.
        on_change: what follows if a tool is new or has changed.

    Raises:
        ValueError: if `on_change` is neither `error` nor `warn`.
    """

    def __init__(self, path: str | os.PathLike[str], on_change: OnChange = "error") -> None:
        expect("pin", path, (str, os.PathLike), "the path of a file")
        if on_change not in get_args(OnChange):
            raise ValueError("on_change must be 'error' or 'warn'")
        self._path = Path(path)
        self._on_change = on_change
        self._warned: list[str] = []

    @property
    def name(self) -> str:
        """The name of the file, without its folder."""
        return self._path.name

    def check(self, server: str, tools: Sequence[Tool]) -> Mapping[str, tuple[str, ...]]:
        """Compare the tools of a server with the file, or add them to it if it doesn't have the server.

        Returns:
            what differs of each tool that is new or has changed, by its name. With `warn`, the log says so, too.

        Raises:
            McpToolsChanged: if the server has a tool that the file does not have, or that has changed.
            ConfigurationError: if the file cannot be read or written.
        """
        servers = self._read()
        warn_of_access(_LOG, "the pinned tools", self._path)
        digests = {tool.name: _digests(tool) for tool in tools}
        pinned: dict[str, Any] = servers[server] if server in servers else self._add_server(server, digests)
        differing = {name: _changes(pinned.get(name), parts) for name, parts in digests.items()}
        changes = [f"{safe_identifier(name)}: {change}" for name, changes in differing.items() for change in changes]
        if changes and self._on_change == "error":
            raise McpToolsChanged(server, self.name, changes)
        if changes and changes != self._warned:
            _LOG.warning("%s", McpToolsChanged(server, self.name, changes))
        self._warned = changes
        return {name: changes for name, changes in differing.items() if changes}

    def names(self) -> Mapping[str, frozenset[str]]:
        """Return the servers' own names of the tools in the file, by server.

        Raises:
            ConfigurationError: if the file cannot be read.
        """
        return {server: frozenset(tools) for server, tools in self._read().items()}

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigurationError(f"the pinned tools in {self._path} cannot be read: {_problem(error)}") from None
        except UnicodeDecodeError:
            text = ""
        try:
            servers = json.loads(text)["servers"]
            if not all(isinstance(tools, dict) for tools in servers.values()):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigurationError(f"{self._path} is not a file of pinned tools: restore it, or delete it") from None
        return dict(servers)

    def _add_server(self, server: str, digests: dict[str, dict[str, str]]) -> dict[str, Any]:
        """Add a server to the file, unless another process has done so, and return the digests of its tools."""
        path = self._path.resolve()  # a symbolic link stays one
        try:
            with _lock(path.parent):
                servers = self._read()
                if server in servers:
                    return servers[server]
                text = json.dumps({"servers": {**servers, server: digests}}, indent=2, sort_keys=True)
                replace_file(path, f"{text}\n".encode())
        except OSError as error:
            raise ConfigurationError(f"the pinned tools cannot be written to {path}: {_problem(error)}") from None
        return digests


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from adding servers, where a folder can be locked."""
    descriptor = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        if descriptor is not None:
            with suppress(OSError):  # some file systems of networks cannot
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _problem(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _digests(tool: Tool) -> dict[str, str]:
    parts = tool.model_dump(mode="json", exclude_none=True, include={*_PINNED})
    return {part: _digest(parts[part]) for part in _PINNED if part in parts}


def _digest(value: Any) -> str:
    try:
        canonical = rfc8785.dumps(value)
    except (ValueError, RecursionError):  # such as an integer beyond 2**53
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(canonical).hexdigest()


def _changes(pinned: Any, current: dict[str, str]) -> tuple[str, ...]:
    if not isinstance(pinned, dict):
        return (_NEW,)
    return tuple(part for part in _PINNED if pinned.get(part) != current.get(part))
