"""Reads messages of MCP servers, and names the request whose answer cannot be read.

Servers cut texts in the middle of a character, print a byte order mark, or send a result that is not an object. What
can be repaired is read; an answer that cannot be read ends its own request, instead of being passed over like a log.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, RequestId, jsonrpc_message_adapter
from pydantic_core import from_json

from traced_tools.core.messages import encodable_json

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_VALUE: Final = re.compile(r'\s*:\s*(-?\d{1,18}(?![\d.eE])|"[^"\\]{0,256}")?')
_LAST_ID: Final = re.compile(r'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,256}")\s*}\s*\Z')
_ENVELOPE: Final = frozenset(("jsonrpc", "result", "error"))
"""Keys that tell an answer from a log line with an id."""
_SCANNED: Final = 64 * 1024
"""The characters at the beginning of a broken message in which its keys are looked for."""


class UnreadableMessage(ValueError):
    """What a server sent is not a message of JSON-RPC.

    Args:
        is_answer: whether it is, or was meant as, the answer to a request.
        ids: the ids of the requests that it answers; empty if they cannot be read.
        has_method: whether it is a request or a notification of the server.
    """

    def __init__(self, *, is_answer: bool = False, ids: tuple[RequestId, ...] = (), has_method: bool = False) -> None:
        super().__init__("what the server sent is not a message")
        self.is_answer = is_answer
        self.ids = ids
        self.has_method = has_method

    def error(self) -> ErrorData:
        """Return the error of the requests that the message answers. Its data is this object, as no server sends."""
        return ErrorData(code=PARSE_ERROR, message=str(self), data=self)

    def as_answer(self, request_id: RequestId) -> JSONRPCError:
        """Return the answer to the request that the message was the response to."""
        return JSONRPCError(jsonrpc="2.0", id=request_id, error=self.error())


def read_message(data: str | bytes) -> JSONRPCMessage | UnreadableMessage:
    """Return the message in a line, in the body of a response or in an event.

    Lone surrogates, bytes that are not UTF-8, NULs and a byte order mark are replaced or dropped.
    """
    try:
        return jsonrpc_message_adapter.validate_python(from_json(data), by_name=False)  # twice as fast as validate_json
    except ValueError:
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    text = text.replace("\0", "").strip("\ufeff \t\r\n")
    if not text.startswith(("{", "[")):
        return UnreadableMessage()
    try:
        value = encodable_json(json.loads(text))
    except (ValueError, RecursionError):
        return _describe_broken(text)
    try:
        return jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValueError:
        return _describe_invalid(value)


def _describe_invalid(value: Any) -> UnreadableMessage:
    """Return a description of JSON that is not a message; older revisions have lists of messages."""
    members = [member for member in (value if isinstance(value, list) else [value]) if isinstance(member, dict)]
    ids = [
        _request_id(member.get("id"))
        for member in members
        if "method" not in member and not _ENVELOPE.isdisjoint(member)
    ]
    request_ids = tuple(request_id for request_id in ids if request_id is not None)
    return UnreadableMessage(
        is_answer=bool(request_ids),
        ids=request_ids,
        has_method=any("method" in member for member in members) and not request_ids,
    )


def _request_id(value: Any) -> RequestId | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _describe_broken(text: str) -> UnreadableMessage:
    """Return a description of a message that is not JSON, such as a truncated one, from its keys and its last id."""
    keys: dict[str, str | None] = {}
    depth = 0
    for token in _TOKEN.finditer(text, 0, _SCANNED):
        if token[0] in "{[":
            depth += 1
        elif token[0] in "}]":
            depth -= 1
        elif depth == 1 and (value := _VALUE.match(text, token.end())):
            keys.setdefault(token[0].strip('"'), value[1])
    if "method" in keys or _ENVELOPE.isdisjoint(keys):
        return UnreadableMessage(has_method="method" in keys)
    last = _LAST_ID.search(text, max(0, len(text) - 1024))
    request_id = keys.get("id") or (last and last[1])
    if request_id is not None:
        return UnreadableMessage(is_answer=True, ids=(json.loads(request_id),))
    return UnreadableMessage(is_answer="result" in keys or "error" in keys)
