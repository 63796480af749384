"""Helpers for all of OpenAI's APIs: address, API key, and the encoding of schemas, calls and images."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

from traced_tools.core.checks import expect
from traced_tools.core.messages import ImagePart, ToolCall
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.core.tool_naming import wire_name
from traced_tools.errors import ConfigurationError, ToolDefinitionError
from traced_tools.models.encoding import (
    convert_output_schema,
    convert_tool_schema,
    encode_image,
    parse_arguments,
    read_object,
)
from traced_tools.models.http.keys import resolve_key
from traced_tools.models.openai.servers import find_known_server, resolve_server
from traced_tools.models.parsing import to_json
from traced_tools.tools.schema.dialects import inline_references, to_object_schema, to_strict_schema
from traced_tools.tools.schema.drafts import to_current_draft

_LOG = logging.getLogger(__name__)
OPENAI = "https://api.openai.com/v1"


def resolve_base_url(base_url: str | None, path: str) -> str:
    """Return `base_url`, else `OPENAI_BASE_URL`, else OpenAI's address, without a slash at its end.

    Raises:
        ConfigurationError: if the address ends with `path`, which the codec adds.
    """
    expect("base_url", base_url, (str, type(None)), "a str or None")
    address = (os.environ.get("OPENAI_BASE_URL") or OPENAI if base_url is None else base_url).rstrip("/")
    if address.endswith(path):
        raise ConfigurationError(f"base_url must be the API's base, such as {OPENAI}: drop {path}")
    return address


def auth_headers(api_key: str | None, address: str, provider: str | None) -> dict[str, str]:
    """Return the header with the API key for the server at `address`, or for the provider behind it.

    The environment variable depends on the server, so that no server receives another one's key.

    Raises:
        ConfigurationError: if the server is a known one and there is no key for it.
    """
    key = resolve_key(api_key, resolve_server(address, provider).key, needed=find_known_server(address) is not None)
    return {"Authorization": f"Bearer {key}"} if key else {}


def encode_tool_schema(
    definition: ToolDefinition, *, strict_tools: bool, inline_definitions: bool
) -> tuple[dict[str, Any], bool]:
    """Return the input schema of a tool, and whether it is one of strict mode.

    A tool that strict mode can't express is sent without it, and logged: strict mode is a setting of each tool.

    Raises:
        ToolDefinitionError: for a schema that can't be sent at all; it names the tool.
    """
    resolve_references = inline_references if inline_definitions else dict
    if strict_tools:
        try:
            return to_strict_schema(resolve_references(to_current_draft(definition.input_schema))), True
        except ToolDefinitionError as error:
            _LOG.warning("the tool %s is sent without strict mode: %s", definition.name, error)
    return convert_tool_schema(definition, lambda schema: to_object_schema(resolve_references(schema))), False


def encode_arguments(call: ToolCall) -> str:
    """Return the arguments as the model wrote them if they are a JSON object; servers refuse anything else."""
    return call.arguments if read_object(call.arguments) is not None else to_json(parse_arguments(call))


CUSTOM = {"type": "custom"}
"""Marks, in a call's signature, a call of a custom tool, whose input is free text instead of JSON."""


def is_custom_call(signed: Mapping[str, Any]) -> bool:
    """Return whether `signed`, the fields of a call's signature, mark a call of a custom tool."""
    return signed.get("type") == CUSTOM["type"]


_BEFORE, _AFTER = '{"input": "', '"}'


class CustomInputConverter:
    """Converts streamed inputs of custom tools, which are free text, to arguments in JSON: `{"input": "..."}`.

    It only yields the pieces of the JSON text; `ChunkFold` joins them.
    """

    def __init__(self) -> None:
        self._open: dict[int | None, str | None] = {}

    def convert_piece(self, index: int | None, call_id: str | None, text: str) -> str:
        """Return the next piece of the arguments of the call at `index`."""
        before = "" if index in self._open else _BEFORE
        self._open[index] = self._open.get(index) or call_id
        return before + to_json(text)[1:-1]

    def has_begun(self, index: int | None) -> bool:
        """Return whether the call at `index` has begun and not ended."""
        return index in self._open

    def ends_before(self, index: int | None, call_id: str | None) -> bool:
        """Return whether a piece with `call_id` at `index` starts another call there, which ends the open one."""
        open_call_id = self._open.get(index)
        return open_call_id is not None and call_id is not None and open_call_id != call_id

    def close(self, index: int | None) -> str:
        """Return the last piece of the arguments of the call at `index`, an empty text if no call is open there."""
        if index not in self._open:
            return ""
        del self._open[index]
        return _AFTER

    def open_indices(self) -> list[int | None]:
        """Return the indices of the open calls in the order in which they began."""
        return list(self._open)


def input_to_arguments(text: str, *, is_cut_off: bool) -> str:
    """Return the input of a custom tool as arguments. If it was cut off, they are invalid JSON, so it doesn't run."""
    arguments = to_json({"input": text})
    return arguments.removesuffix(_AFTER) if is_cut_off else arguments


def arguments_to_input(call: ToolCall) -> str:
    """Return the input of a custom tool as the model wrote it; the reverse of `input_to_arguments`."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    text = arguments.get("input") if isinstance(arguments, dict) else None
    return text if isinstance(text, str) else call.arguments


def to_image_url(image: ImagePart) -> str:
    """Return the URL of an image; for bytes, a `data:` URL (RFC 2397)."""
    return image.url or f"data:{image.media_type};base64,{encode_image(image)}"


def encode_output_schema(schema: Mapping[str, Any], *, inline_definitions: bool) -> dict[str, Any]:
    """Return the fields for an answer's schema: its name, the schema, and whether strict mode is on.

    Strict mode is on if the schema has the same meaning in it. Otherwise the schema is sent unchanged.

    Raises:
        ConfigurationError: if a reference in the schema can't be resolved.
    """
    converted_schema = convert_output_schema(schema, inline_references if inline_definitions else dict)
    strict_schema = _strict_if_equal(converted_schema)
    name = wire_name(str(converted_schema.get("title") or "answer"))
    return {"name": name, "schema": strict_schema or converted_schema, "strict": strict_schema is not None}


def _strict_if_equal(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema in strict mode, None if the meaning differs: an optional field would become nullable."""
    try:
        strict_schema = to_strict_schema(schema)
    except ToolDefinitionError:
        return None
    return None if _has_optional_fields(schema) else strict_schema


def _has_optional_fields(schema: Any) -> bool:
    match schema:
        case {"properties": dict() as fields} if not _requires_all(schema, fields):
            return True
        case dict():
            return any(map(_has_optional_fields, schema.values()))
        case list():
            return any(map(_has_optional_fields, schema))
    return False


def _requires_all(schema: Mapping[str, Any], fields: Iterable[str]) -> bool:
    required = schema.get("required")
    return all(isinstance(required, list) and name in required for name in fields)
