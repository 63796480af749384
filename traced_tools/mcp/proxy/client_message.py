"""Messages of clients, as the gateway reads them before it passes them on.

A message that servers could read otherwise than the gateway must not pass: a policy would decide about another call
than the one that the server runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INVALID_REQUEST,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
)
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from traced_tools.mcp.proxy.json_text import AmbiguousObject, is_ambiguous, read_json, text_at
from traced_tools.observe import names

_ENVELOPE: Final = ("jsonrpc", "id", "method", "params", "result", "error")
_CALL: Final = ("name", "arguments", "_meta")
WATCHED: Final = (names.TOOLS_CALL, "tools/list", "initialize")
"""The methods whose requests or answers the gateway reads."""
_AMBIGUOUS: Final = "Invalid Request: servers may read the keys of this message differently"


class InvalidMessage(Exception):
    """A message that does not reach the server.

    Args:
        answers: the messages that answer it.
    """

    def __init__(self, *answers: bytes) -> None:
        super().__init__("a message of the client is invalid")
        self.answers = answers


@dataclass(frozen=True)
class ClientMessage:
    """A message of a client.

    Args:
        data: the message as it came.
        text: its text.
        value: its value; a list for a batch.
    """

    data: bytes = field(repr=False)
    text: str = field(repr=False)
    value: Any = field(repr=False)

    @cached_property
    def arguments_text(self) -> str:
        """The text of the arguments of a call; an empty object if there are none."""
        is_missing = self.params.get("arguments") is None
        return "{}" if is_missing else text_at(self.text, ("params", "arguments")) or "{}"

    @property
    def method(self) -> str | None:
        """The method of a request or a notification."""
        method = self.value.get("method") if isinstance(self.value, dict) else None
        return method if isinstance(method, str) else None

    @property
    def key(self) -> str | None:
        """Identifies a request, or what an answer is for; None for a notification and for a batch."""
        return request_key(self.value.get("id")) if isinstance(self.value, dict) else None

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters; empty if there are none."""
        params = self.value.get("params") if isinstance(self.value, dict) else None
        return params if isinstance(params, dict) else {}

    @property
    def meta(self) -> Mapping[str, Any]:
        """The `_meta` of the parameters; empty if there is none."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}

    def params_text(self, key: str) -> str | None:
        """Return the text of a parameter; None if there is none."""
        return text_at(self.text, ("params", key))

    def result(self, result: Mapping[str, Any]) -> bytes:
        """Return the message that answers the request with a result."""
        return self._answer("result", result)

    def error(self, code: int, message: str, data: Any = None) -> bytes:
        """Return the message that answers the request with an error."""
        return self._answer("error", {"code": code, "message": message, **({} if data is None else {"data": data})})

    def _answer(self, member: str, value: Any) -> bytes:
        request_id = text_at(self.text, ("id",)) or "null"
        body = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
        return b'{"jsonrpc":"2.0","id":%s,"%s":%s}' % (request_id.encode(), member.encode(), body)


def read_client_message(data: bytes) -> ClientMessage:
    """Return the message in a line or a body of a client.

    Raises:
        InvalidMessage: if it is not JSON, if servers could read it differently, or for a batch with a request whose
            answer the gateway has to read.
    """
    try:
        text, value = read_json(data)
    except ValueError:
        raise InvalidMessage(_error("null", PARSE_ERROR, "Parse error")) from None
    message = ClientMessage(data, text, value)
    if isinstance(value, list):
        _check_batch(value)
    elif isinstance(value, dict):
        _check_object(message, value)
    return message


def _check_object(message: ClientMessage, value: dict[str, Any]) -> None:
    is_call = value.get("method") == names.TOOLS_CALL
    is_unclear = isinstance(value, AmbiguousObject) or _resembles(value, _ENVELOPE)
    if is_unclear or (is_call and (is_ambiguous(value) or _resembles(message.params, _CALL))):
        raise InvalidMessage(*([] if value.get("id") is None else [message.error(INVALID_REQUEST, _AMBIGUOUS)]))


def _resembles(value: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    """Return whether an object has a key that a reader which ignores case takes for one of `keys`."""
    return any(key not in keys and key.casefold() in keys for key in value)


def _check_batch(members: list[Any]) -> None:
    """Raise `InvalidMessage` for a batch, of the revision 2025-03-26, that has a request which must be read."""
    objects = [member for member in members if isinstance(member, dict)]
    is_plain = all(
        member.get("method") not in WATCHED and not is_ambiguous(member) and not _resembles(member, _ENVELOPE)
        for member in objects
    )
    if len(objects) < len(members) or not is_plain:
        reason = "Invalid Request: a call of a tool, or a list of tools, must not be in a batch"
        ids = [json.dumps(member["id"]) for member in objects if isinstance(member.get("id"), str | int | float)]
        raise InvalidMessage(*[_error(request_id, INVALID_REQUEST, reason) for request_id in ids])


def _error(request_id: str, code: int, message: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":{request_id},"error":{json.dumps({"code": code, "message": message})}}}'.encode()


def request_key(request_id: Any) -> str | None:
    """Return what identifies a request: equal for ids that a peer may confuse, such as 1 and "1"."""
    if isinstance(request_id, float) and request_id.is_integer():
        return str(int(request_id))
    return str(request_id) if isinstance(request_id, int | str | float) else None


@dataclass
class ClientFacts:
    """What a client states about itself: when its session begins, or in each request.

    Attributes:
        version: the agreed revision of the protocol, one that is known or `_OTHER`.
        name: the name of the client.
        capabilities: its capabilities.
        is_modern: whether they are of the request alone.
    """

    version: str = names.OTHER
    name: str = ""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    is_modern: bool = False

    def introduced(self, params: Mapping[str, Any]) -> None:
        """Take over what the client says in `initialize`."""
        self.name = _name(params.get("clientInfo"))
        self.capabilities = _mapping(params.get("capabilities"))

    def agreed(self, result: Any) -> None:
        """Take over the revision in the server's answer to `initialize`."""
        self.version = _known(_mapping(result).get("protocolVersion"))

    def of(self, message: ClientMessage) -> ClientFacts:
        """Return the facts for a request, which states its own from the revision 2026-07-28 on."""
        meta = message.meta
        if PROTOCOL_VERSION_META_KEY not in meta:
            return self
        return ClientFacts(
            _known(meta[PROTOCOL_VERSION_META_KEY]),
            _name(meta.get(CLIENT_INFO_META_KEY)),
            _mapping(meta.get(CLIENT_CAPABILITIES_META_KEY)),
            is_modern=True,
        )

    @property
    def can_elicit(self) -> bool:
        """Whether the client can ask its user with a form."""
        elicitation = self.capabilities.get("elicitation")
        return isinstance(elicitation, dict) and ("form" in elicitation or "url" not in elicitation)


def _known(version: Any) -> str:
    return version if version in KNOWN_PROTOCOL_VERSIONS else names.OTHER


def _name(information: Any) -> str:
    name = _mapping(information).get("name")
    return name if isinstance(name, str) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
