"""What OpenAI's APIs share: the address, the key, how schemas, calls and images are sent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from traced_tools.core.checks import expect
from traced_tools.core.messages import ImagePart, ToolCall
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.core.tool_naming import wire_name
from traced_tools.errors import ConfigurationError, ToolDefinitionError
from traced_tools.models.encoding import convert_output_schema, convert_tool_schema, encode_image, parse_arguments
from traced_tools.models.http.keys import resolve_key
from traced_tools.models.openai.servers import known_server, server_of
from traced_tools.models.wire import to_json
from traced_tools.tools.schema.dialects import inlined, one_object, strict

OPENAI = "https://api.openai.com/v1"


def address_of(base_url: str | None, path: str) -> str:
    """Return the address that was given, else that of the environment, else OpenAI's, without a slash at its end.

    Raises:
        ConfigurationError: if it ends with `path`, which is the codec's to add.
    """
    expect("base_url", base_url, (str, type(None)), "a str or None")
    address = (os.environ.get("OPENAI_BASE_URL") or OPENAI if base_url is None else base_url).rstrip("/")
    if address.endswith(path):
        raise ConfigurationError(f"base_url must be the API's base, such as {OPENAI}: drop {path}")
    return address


def headers_of(api_key: str | None, address: str, provider: str | None) -> dict[str, str]:
    """Return the headers that hold the key of the server at `address`, or behind it: each gets its own and no other's.

    Raises:
        ConfigurationError: for a known server without a key.
    """
    key = resolve_key(api_key, server_of(address, provider).key, needed=known_server(address) is not None)
    return {"Authorization": f"Bearer {key}"} if key else {}


def sent_schema(definition: ToolDefinition, *, strict_tools: bool, inline_definitions: bool) -> dict[str, Any]:
    """Return the input schema of a tool as it is sent; raises `ToolDefinitionError` that names the tool."""
    written_out = inlined if inline_definitions else dict
    accepted = strict if strict_tools else one_object
    return convert_tool_schema(definition, lambda schema: accepted(written_out(schema)))


def arguments_text(call: ToolCall) -> str:
    """Return the arguments as the model wrote them; servers refuse a conversation in which they are no JSON object."""
    try:
        is_object = isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    return call.arguments if is_object else to_json(parse_arguments(call))


CUSTOM = {"type": "custom"}
"""In the signature of a call: it is of a custom tool, whose input is any text and not JSON."""


def is_custom(signed: Mapping[str, Any]) -> bool:
    """Return whether the fields of a signature are those of a call of a custom tool."""
    return signed.get("type") == CUSTOM["type"]


_BEFORE, _AFTER = '{"input": "', '"}'


class CustomInputs:
    """Writes streamed inputs of custom tools as the JSON text of arguments: each is the field `input` of an object."""

    def __init__(self) -> None:
        self._open: dict[int | None, str | None] = {}

    def piece(self, place: int | None, call_id: str | None, text: str) -> str:
        """Return the next piece of the arguments of the call at `place`."""
        before = "" if place in self._open else _BEFORE
        self._open[place] = self._open.get(place) or call_id
        return before + to_json(text)[1:-1]

    def has_begun(self, place: int | None) -> bool:
        """Return whether the call at `place` has begun and is not over."""
        return place in self._open

    def ends_before(self, place: int | None, call_id: str | None) -> bool:
        """Return whether the call at `place` is over because a call with another id follows there."""
        known = self._open.get(place)
        return known is not None and call_id is not None and known != call_id

    def end(self, place: int | None) -> str:
        """Return the last piece of the arguments of the call at `place`, nothing if there is no such call."""
        if place not in self._open:
            return ""
        del self._open[place]
        return _AFTER

    def open(self) -> list[int | None]:
        """Return the places of the calls that are not over, in the order in which they began."""
        return list(self._open)


def custom_arguments(text: str, *, is_cut_off: bool) -> str:
    """Return the input of a custom tool as arguments; an input that was cut off is not JSON, so that it is not run."""
    whole = to_json({"input": text})
    return whole.removesuffix(_AFTER) if is_cut_off else whole


def custom_input(call: ToolCall) -> str:
    """Return the input of a custom tool as the model wrote it."""
    try:
        found = json.loads(call.arguments)
    except (ValueError, RecursionError):
        found = None
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else call.arguments


def image_url(image: ImagePart) -> str:
    """Return the address of an image; that of bytes is a `data:` address (RFC 2397)."""
    return image.url or f"data:{image.media_type};base64,{encode_image(image)}"


def sent_output_schema(schema: Mapping[str, Any], *, inline_definitions: bool) -> dict[str, Any]:
    """Return what an answer's schema is sent as: its name, the schema, and whether it is held strictly.

    It is where strict mode says the same; else the schema is sent as it is.

    Raises:
        ConfigurationError: for a schema whose references lead nowhere.
    """
    given = convert_output_schema(schema, inlined if inline_definitions else dict)
    exact = _exact(given)
    name = wire_name(str(given.get("title") or "answer"))
    return {"name": name, "schema": exact or given, "strict": exact is not None}


def _exact(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema in strict mode if it means the same there: a field that may be left out would become null."""
    try:
        exact = strict(schema)
    except ToolDefinitionError:
        return None
    return None if _has_optional_fields(schema) else exact


def _has_optional_fields(schema: Any) -> bool:
    match schema:
        case {"properties": dict() as fields} if not _requires(schema, fields):
            return True
        case dict():
            return any(map(_has_optional_fields, schema.values()))
        case list():
            return any(map(_has_optional_fields, schema))
    return False


def _requires(schema: Mapping[str, Any], fields: Iterable[str]) -> bool:
    required = schema.get("required")
    return all(isinstance(required, list) and name in required for name in fields)
