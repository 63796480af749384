"""What several providers' codecs need to write a request."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from traced_tools.core.messages import AssistantMessage, ImagePart, ToolCall
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import ConfigurationError, ToolDefinitionError
from traced_tools.tools.unwrapping import unwrap_arguments

Dialect = Callable[[Mapping[str, Any]], dict[str, Any]]
"""What makes of a JSON Schema one that a provider reads; raises `ToolDefinitionError` for one it cannot."""


def own(message: AssistantMessage, provider: str) -> bool:
    """Return whether what is sealed in `message` may go to `provider`: it said it, or nobody is named."""
    return message.provider in (None, provider)


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of `call` as an object, for providers that take nothing else.

    They are taken out of what they are wrapped in, as for the tool. Arguments that are no JSON object stand in one as
    text, so that the model sees its own mistake.
    """
    text, _ = unwrap_arguments(call.arguments)
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # numbers and text that JSON cannot hold
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"invalid_arguments": call.arguments}


def fields_of(signature: str | None) -> dict[str, Any]:
    """Return the fields that the signature of a call holds, none for a signature that is not a JSON object."""
    if not signature or not signature.startswith("{"):  # most calls have none, and most others are base64
        return {}
    try:
        fields: dict[str, Any] = json.loads(signature)
    except (ValueError, RecursionError):
        return {}
    return fields


def tool_schema(definition: ToolDefinition, dialect: Dialect) -> dict[str, Any]:
    """Return the input schema of a tool in `dialect`; raises `ToolDefinitionError` that names the tool."""
    try:
        return dialect(definition.input_schema)
    except ToolDefinitionError as error:
        problem = error
    raise ToolDefinitionError(f"the tool {definition.name} cannot be sent: {problem}")


def output_schema(schema: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Return the schema of an answer in `dialect`; raises `ConfigurationError` that names the option."""
    try:
        return dialect(schema)
    except ToolDefinitionError as error:
        problem = error
    raise ConfigurationError(f"output_schema cannot be sent: {problem}")


def base64_of(image: ImagePart) -> str:
    """Return the bytes of `image` as base64 text."""
    return base64.b64encode(image.data or b"").decode()


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are set: what is None is left to the provider."""
    return {name: value for name, value in fields.items() if value is not None}


def merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return `body` with `extra` on top: it adds to what is an object or a list in both, and replaces the rest."""
    return {**body, **{name: _joined(body.get(name), value) for name, value in extra.items()}}


def _joined(known: object, added: object) -> object:
    if isinstance(known, Mapping) and isinstance(added, Mapping):
        return {**known, **added}
    if isinstance(known, list) and isinstance(added, list | tuple):
        return [*known, *added]
    return added
