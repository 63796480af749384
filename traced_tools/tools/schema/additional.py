"""The arguments that a pydantic model adds to those of a tool: schema, validation, and the reason among them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, RootModel

from traced_tools.core.canonical import canonical_text
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.schema.arguments import ArgumentValidationError, BoundArguments, bind_arguments, read_json
from traced_tools.tools.schema.callable_schema import ArgumentSchema, map_schemas, signature_of
from traced_tools.tools.schema.fields import field_names, has_closed_branch
from traced_tools.tools.schema.json_schema import ArgumentProblem
from traced_tools.tools.schema.references import References, without_keywords

_DECODER: Final = json.JSONDecoder()
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_DEFINED: Final = "#/$defs/"


class Member(NamedTuple):
    """A member of a JSON object: its name, and its text with the name."""

    name: str
    text: str


def members_of(text: str) -> list[Member]:
    """Return the members of the JSON object in `text`, each as it is written, so that no digit of a number is lost.

    Raises:
        ArgumentValidationError: if the text is not a JSON object.
    """
    value = read_json(text)
    if not isinstance(value, dict):
        raise ArgumentValidationError([ArgumentProblem((), "must be a JSON object", value)])
    members: list[Member] = []
    place = _after_blanks(text, text.index("{") + 1)
    while text.startswith('"', place):
        name, end = _DECODER.raw_decode(text, place)
        _, end = _DECODER.raw_decode(text, _after_blanks(text, text.index(":", end) + 1))
        members.append(Member(name, text[place:end]))
        place = _after_blanks(text, _after_blanks(text, end) + 1)
    return members


def _after_blanks(text: str, place: int) -> int:
    blanks = _BLANKS.match(text, place)
    return place if blanks is None else blanks.end()


def object_of(members: Iterable[Member]) -> str:
    """Return the text of a JSON object with these members."""
    return f"{{{', '.join(member.text for member in members)}}}"


class AdditionalArguments:
    """The arguments that the fields of a pydantic model add to those of a tool.

    Args:
        model: the pydantic model.

    Attributes:
        names: the names of the arguments.

    Raises:
        TypeError: if `model` is not a pydantic model with fields.
        ToolDefinitionError: if pydantic cannot validate a field, or JSON cannot represent it.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or issubclass(model, RootModel):
            raise TypeError("arguments must be a pydantic model with fields, such as a subclass of BaseModel")
        if not model.model_fields:
            raise TypeError(f"arguments must be a pydantic model with fields, and {model.__name__} has none")
        try:
            self._reader = ArgumentSchema(signature_of(_take), model)
        except ToolDefinitionError as error:
            raise ToolDefinitionError(
                f"{model.__name__} cannot augment tools: its fields must be of types that pydantic can validate and "
                "JSON can represent"
            ) from error
        self._model = model
        self._schema = self._reader.json_schema
        self.names = frozenset(self._schema["properties"])
        self._reason = next((name for name, field in model.model_fields.items() if _is_text(field.annotation)), None)

    def bind(self, text: str) -> BoundArguments:
        """Read an instance of the model from JSON text; raise `InvalidArguments` if it is invalid."""
        bound = bind_arguments(self._reader.check, text, self._schema)
        return bound._replace(value=bound.value["arguments"])

    def reason(self, bound: BoundArguments) -> str | None:
        """Return the model's reason for the call: the first field of type `str`, or all as JSON if there is none.

        Return None for a field that is None or blank.
        """
        if self._reason is None:
            return canonical_text(self._reader.as_json({"arguments": bound.value}, bound.text))
        reason = getattr(bound.value, self._reason)
        return reason if reason and reason.strip() else None

    def merged_into(self, tool: ToolDefinition) -> dict[str, Any]:
        """Return the input schema of a tool with the additional arguments.

        They come first, so that the model states its reason before it writes the arguments of the tool.

        Raises:
            ToolDefinitionError: if the tool has an argument of the same name, or accepts no other arguments, or has a
                schema whose arguments cannot be found.
        """
        try:
            return self._merge(tool)
        except (AttributeError, TypeError):  # an invalid schema, such as one whose `properties` are a list
            raise ToolDefinitionError(
                f"the tool {tool.name!r} cannot be augmented: its input schema is not a valid JSON Schema"
            ) from None

    def _merge(self, tool: ToolDefinition) -> dict[str, Any]:
        own, model = _separate_root(tool.input_schema), self._model.__name__
        if duplicates := sorted(self.names & field_names(own)):
            name = duplicates[0]
            raise ToolDefinitionError(
                f"the tool {tool.name!r} and {model} both have the argument {name!r}: rename the field of {model}"
            )
        if has_closed_branch(own):
            raise ToolDefinitionError(
                f"the tool {tool.name!r} cannot be augmented with {model}: a part of its input schema, such as a form "
                "of a union, forbids other arguments"
            )
        extra, definitions = self._schema, own.get("$defs", {})
        if "$defs" in extra:
            extra = _rename_definitions(extra, definitions)
            definitions = {**definitions, **extra["$defs"]}
        required = [*own.get("required", ()), *extra.get("required", ())]
        return {
            **({"$defs": definitions} if definitions else {}),
            "type": "object",
            **without_keywords(own, ("$defs",)),
            "properties": {**extra["properties"], **own.get("properties", {})},
            **({"required": required} if required else {}),
        }


def _take(arguments: Any) -> None:
    """Stand for a function whose only argument is the instance of the model."""


def _is_text(annotation: Any) -> bool:
    is_union = get_origin(annotation) in (Union, UnionType)
    kinds = {getattr(kind, "__origin__", kind) for kind in (get_args(annotation) if is_union else [annotation])}
    return kinds - {NoneType} == {str}


def _separate_root(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema to whose root properties can be added: the root is not a reference, and none refers to it."""
    own = dict(schema)
    if "$ref" in own or _refers_to_root(own):
        own = References(own, inline=False).rewritten()
    if not _refers_to_root(own):
        return own
    name = _free_name("arguments", own.get("$defs", {}))
    own = _redirect_references(own, {"#": f"{_DEFINED}{name}"})
    return {**own, "$defs": {**own.get("$defs", {}), name: without_keywords(own, ("$defs",))}}


def _refers_to_root(schema: Mapping[str, Any]) -> bool:
    return _redirect_references(schema, {"#": ""}) != schema


def _rename_definitions(schema: Mapping[str, Any], names_in_use: Collection[str]) -> dict[str, Any]:
    """Return a schema whose definitions have none of the `names_in_use`."""
    names: dict[str, str] = {}
    for name in schema["$defs"]:
        names[name] = (
            _free_name(f"{name}_", {*names_in_use, *schema["$defs"], *names.values()}) if name in names_in_use else name
        )
    renamed = _redirect_references(schema, {f"{_DEFINED}{name}": f"{_DEFINED}{new}" for name, new in names.items()})
    return {**renamed, "$defs": {names[name]: definition for name, definition in renamed["$defs"].items()}}


def _free_name(name: str, names_in_use: Collection[str]) -> str:
    while name in names_in_use:
        name += "_"
    return name


def _redirect_references(schema: Mapping[str, Any], targets: Mapping[str, str]) -> dict[str, Any]:
    """Return a schema in which each reference to a key of `targets` refers to its value."""

    def change(part: dict[str, Any]) -> dict[str, Any]:
        target = part.get("$ref")
        return {**part, "$ref": targets[target]} if isinstance(target, str) and target in targets else part

    redirected: dict[str, Any] = map_schemas(schema, change)
    return redirected
