"""Helpers that the codecs of several providers use to encode a request."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from math import isinf
from typing import Any, Final, NoReturn

from traced_tools.core.messages import AssistantMessage, ImagePart, ToolCall
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.core.unwrapping import unwrap_arguments
from traced_tools.errors import ConfigurationError, ToolDefinitionError
from traced_tools.tools.schema.drafts import to_current_draft

Dialect = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Converts a JSON Schema to the dialect a provider accepts; raises `ToolDefinitionError` if that is impossible."""


def may_send_signed_parts(message: AssistantMessage, provider: str) -> bool:
    """Return whether signed parts of `message` may go to `provider`: `message.provider` is the same or not set."""
    return message.provider in (None, provider)


def parse_arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of `call` as an object, for providers that accept only objects.

    Wrappers such as a code fence are removed first, as they are for the tool. Arguments that aren't a JSON object
    become the text of the field `invalid_arguments`, so that the model sees its mistake.
    """
    arguments = read_object(unwrap_arguments(call.arguments)[0])
    return {"invalid_arguments": call.arguments} if arguments is None else arguments


def read_object(text: str) -> dict[str, Any] | None:
    """Return the object in JSON text; None for anything that a strict parser refuses.

    Python's parser also reads numbers that are not finite, and halves of surrogate pairs, which UTF-8 can't encode.
    """
    try:
        value = _STRICT_JSON.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(literal: str) -> float:
    number = float(literal)
    if isinf(number):
        raise ValueError("a number too large for a double")
    return number


_STRICT_JSON: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def signature_fields(signature: str | None) -> dict[str, Any]:
    """Return the fields in a call's signature; an empty dict for a signature that isn't a JSON object."""
    if not signature or not signature.startswith("{"):  # most calls have no signature, most others have base64
        return {}
    try:
        fields: dict[str, Any] = json.loads(signature)
    except (ValueError, RecursionError):
        return {}
    return fields


def convert_tool_schema(definition: ToolDefinition, dialect: Dialect) -> dict[str, Any]:
    """Return the input schema of a tool in `dialect`; raises a `ToolDefinitionError` that names the tool."""
    try:
        return dialect(to_current_draft(definition.input_schema))
    except ToolDefinitionError as error:
        problem = error
    raise ToolDefinitionError(f"the tool {definition.name} cannot be sent: {problem}")


def convert_output_schema(schema: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Return the schema of an answer in `dialect`; raises a `ConfigurationError` that names the option."""
    try:
        return dialect(schema)
    except ToolDefinitionError as error:
        problem = error
    raise ConfigurationError(f"output_schema cannot be sent: {problem}")


def encode_image(image: ImagePart) -> str:
    """Return the bytes of `image` as base64 text."""
    return base64.b64encode(image.data or b"").decode()


def drop_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that aren't None; for the others, the provider's default applies."""
    return {name: value for name, value in fields.items() if value is not None}


def merge_extra(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return `body` with `extra` merged in: objects and lists are extended, any other value is replaced."""
    return {**body, **{name: _merge_field(body.get(name), value) for name, value in extra.items()}}


def _merge_field(current: object, extra: object) -> object:
    if isinstance(current, Mapping) and isinstance(extra, Mapping):
        return {**current, **extra}
    if isinstance(current, list) and isinstance(extra, list | tuple):
        return [*current, *extra]
    return extra
