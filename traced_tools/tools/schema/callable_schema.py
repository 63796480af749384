"""Builds the JSON Schema of a function's arguments, and validates JSON text into keyword arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NotRequired
from weakref import WeakKeyDictionary

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticUndefined, to_jsonable_python
from typing_extensions import TypedDict

from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.schema.arguments import ArgumentValidationError, SchemaArguments, read_json
from traced_tools.tools.schema.dialects import inline_references
from traced_tools.tools.schema.json_schema import UNKNOWN_FIELD, SchemaCheck
from traced_tools.tools.schema.signature import Parameter, Signature
from traced_tools.tools.schema.values import to_json_value


class ArgumentSchema:
    """The JSON Schema of one function's arguments, and their validation.

    Args:
        signature: the function's parameters.
        input_type: a type with fields that the model fills; its instance is the function's only argument. By default,
            it is the type of the only parameter if that has fields; otherwise the model fills the parameters.

    Raises:
        ToolDefinitionError: for a parameter that no JSON object can fill.
    """

    def __init__(self, signature: Signature, input_type: Any = None) -> None:
        self._instance_parameter: str | None = None
        self._parameters = signature.parameters
        self._optional: list[Parameter] = []
        if input_type is None and len(signature.parameters) == 1 and signature.parameters[0].has_fields:
            input_type = signature.parameters[0].hint
        if input_type is None:
            self._adapter, schema = self._parameter_schema(signature)
        else:
            self._adapter, schema = self._type_schema(signature, input_type)
        self.json_schema, is_open = close_objects(schema)
        # pydantic can forbid extra fields in all models or in none: if one model allows them, the JSON Schema decides
        self._extra: Any = None if is_open else "forbid"
        self._fields = SchemaCheck(self.json_schema, signature.name) if is_open else None

    def _type_schema(self, signature: Signature, input_type: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
        if len(signature.parameters) != 1 or not signature.parameters[0].is_named:
            raise ToolDefinitionError(f"{signature.name} with an input_type must take one named argument, its instance")
        self._instance_parameter = signature.parameters[0].name
        adapter, schema = _adapter_and_schema(signature, input_type)
        schema = simplify_schema(schema)
        if "properties" not in schema:
            raise ToolDefinitionError(
                f"{signature.name} cannot be a tool: its input_type has no fields that a JSON object could fill; "
                "use a pydantic model, a dataclass or a TypedDict"
            )
        return adapter, schema

    def _parameter_schema(self, signature: Signature) -> tuple[TypeAdapter[Any], dict[str, Any]]:
        # a typed dictionary, because a pydantic model cannot have fields such as `json` and `model_config`
        fields: Any = {parameter.name: self._field(signature.name, parameter) for parameter in signature.parameters}
        arguments: Any = TypedDict("Arguments", fields)  # type: ignore[misc]
        adapter, schema = _adapter_and_schema(
            signature, with_config(ConfigDict(extra="forbid", allow_inf_nan=False))(arguments)
        )
        for parameter in signature.parameters:
            _add_default(schema["properties"].get(parameter.key, {}), parameter)
        return adapter, simplify_schema(schema)

    def _field(self, function: str, parameter: Parameter) -> Any:
        if not parameter.is_named:
            raise ToolDefinitionError(
                f"{function} cannot be a tool: the model passes arguments by name, so it cannot fill {parameter}; "
                "use named parameters, or take **kwargs and pass input_schema="
            )
        if parameter.required:
            return parameter.hint
        if not parameter.has_own_default:
            self._optional.append(parameter)
        return NotRequired[parameter.hint]

    def check(self, text: str) -> dict[str, Any]:
        """Return the keyword arguments in JSON text; raise `ArgumentValidationError` if they are invalid."""
        if "NaN" in text or "Infinity" in text:  # pydantic accepts these numbers, which are not JSON
            read_json(text)
        try:
            values = self._adapter.validator.validate_json(text, extra=self._extra)
        except ValidationError as error:
            invalid = ArgumentValidationError.from_pydantic_error(error, text)
        else:
            if self._fields is not None:  # only for unknown fields: pydantic has validated everything else
                problems = self._fields.problems(read_json(text))
                if unknown := [problem for problem in problems if problem.text.startswith(UNKNOWN_FIELD)]:
                    raise ArgumentValidationError(unknown)
            return self._keywords(values)
        raise invalid  # outside of `except`: pydantic's error quotes values and must not be chained

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the JSON form of keyword arguments, including the defaults of omitted arguments.

        Args:
            value: the keyword arguments that `check` returned.
            text: the JSON text that was passed to `check`. It replaces each part without a JSON form. A default without
                a JSON form is omitted.
        """
        if self._instance_parameter is not None:
            instance: dict[str, Any] = self._json_form(value, text, self._instance_parameter, None)
            return instance
        arguments: dict[str, Any] = {}
        for parameter in self._parameters:
            if parameter.name in value:
                arguments[parameter.key] = self._json_form(value, text, parameter.name, parameter.key)
            elif parameter.has_own_default:
                with suppress(ValueError, RecursionError):
                    arguments[parameter.key] = to_json_value(parameter.default)
        return arguments

    def _json_form(self, value: dict[str, Any], text: str, name: str, key: str | None) -> Any:
        """Return the JSON form of the argument `name`: the field `key` of the text, or the whole text for None."""
        try:
            return to_json_value(value[name])
        except (ValueError, RecursionError):
            source = read_json(text)
        source = source if key is None else source.get(key)
        try:
            return to_json_value(self.check(text)[name], source)  # a new value: this consumes its iterables
        except RecursionError:  # nested too deeply for a JSON form
            return source

    def _keywords(self, values: Any) -> dict[str, Any]:
        if self._instance_parameter is not None:
            return {self._instance_parameter: values}
        for parameter in self._optional:
            if parameter.name not in values:
                values[parameter.name] = parameter.default_if_omitted()
        return values  # type: ignore[no-any-return]


class StrictArguments:
    """Reads arguments that the developer's own JSON Schema validates first, and the function's types after it.

    Args:
        declared: the reader for the developer's schema.
        typed: the reader for the function's annotations.
    """

    def __init__(self, declared: SchemaArguments, typed: ArgumentSchema) -> None:
        self._declared = declared
        self.typed = typed
        self.as_json = typed.as_json

    def check(self, text: str) -> dict[str, Any]:
        """Return the keyword arguments in JSON text; raise `ArgumentValidationError` if they are invalid."""
        self._declared.check(text)
        return self.typed.check(text)


_SIGNATURES: WeakKeyDictionary[Any, dict[bool, Signature]] = WeakKeyDictionary()
_SCHEMAS: WeakKeyDictionary[Signature, ArgumentSchema] = WeakKeyDictionary()


def signature_of(function: Callable[..., Any]) -> Signature:
    """Return the signature of `function`, cached per function, so that all objects with a method share it."""
    method = getattr(function, "__func__", None)
    try:
        signatures = _SIGNATURES.setdefault(method or function, {})
    except TypeError:  # an object without a hash or without weak references
        signatures = {}
    is_method = method is not None
    if is_method not in signatures:
        signatures[is_method] = Signature(function)
    return signatures[is_method]


def schema_of(signature: Signature) -> ArgumentSchema:
    """Return the schema of a function's arguments, cached per signature."""
    try:
        return _SCHEMAS[signature]
    except KeyError:
        return _SCHEMAS.setdefault(signature, ArgumentSchema(signature))


class SchemaGenerator(GenerateJsonSchema):
    """Omits a default that JSON cannot represent, without a warning."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (pydantic's own name and type)


def _adapter_and_schema(signature: Signature, arguments: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    try:
        adapter = TypeAdapter(arguments)
        return adapter, adapter.json_schema(schema_generator=SchemaGenerator)
    except Exception as error:
        culprit = _without_schema(signature) or "its input_type"
        raise ToolDefinitionError(
            f"{signature.name} cannot be a tool: {culprit} must be of a type that pydantic can validate and JSON can "
            f"represent. {str(error).splitlines()[0].split('. ')[0]}"
        ) from error


def _without_schema(signature: Signature) -> str | None:
    """Return the first parameter for which pydantic cannot generate a schema."""
    for parameter in signature.parameters:
        try:
            hint: Any = parameter.hint
            TypeAdapter(hint).json_schema(schema_generator=SchemaGenerator)
        except Exception:
            return f"its parameter {parameter}"
    return None


def check_valid_schema(signature: Signature, schema: Mapping[str, Any]) -> None:
    """Raise `ToolDefinitionError` for a developer's own schema that is invalid or has unresolvable references."""
    if not SchemaCheck(schema, signature.name).usable:
        raise ToolDefinitionError(
            f"the input_schema of {signature.name} is not a valid JSON Schema or has unresolvable references"
        )


def check_input_schema(signature: Signature, schema: Mapping[str, Any], typed: ArgumentSchema | None) -> None:
    """Raise `ToolDefinitionError` unless a JSON Schema matches the parameters of a function.

    Args:
        signature: the function's parameters.
        schema: the JSON Schema.
        typed: the schema from the function's annotations; None if it takes arguments of any name.
    """
    if schema.get("type", "object") != "object":
        raise ToolDefinitionError(
            f"the input_schema of {signature.name} must be of type object: arguments are passed by name"
        )
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    required = signature.required if typed is None else typed.json_schema.get("required", ())
    unknown = [] if typed is None else sorted(properties.keys() - typed.json_schema["properties"].keys())
    missing = [name for name in required if name not in properties]
    if unknown:
        raise ToolDefinitionError(
            f"the input_schema of {signature.name} has {', '.join(unknown)}, which the function does not take"
        )
    if missing:
        raise ToolDefinitionError(
            f"the input_schema of {signature.name} lacks {', '.join(missing)}, which the function requires"
        )


def _add_default(schema: dict[str, Any], parameter: Parameter) -> None:
    """Add a parameter's default to its schema, if JSON can represent it."""
    default = parameter.default
    if default is not PydanticUndefined and not hasattr(default, "__next__"):  # reading an iterator would consume it
        with suppress(Exception):  # the developer's own serializer may raise anything
            schema["default"] = to_jsonable_python(default)


_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs")
_INLINE_LIMIT = 4_000
"""A schema of up to this many characters is inlined even if that makes it longer."""
_VALUES = ("default", "const", "enum", "examples", "discriminator")


def map_schemas(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a schema with `change` applied to each schema in it, the innermost first."""
    if isinstance(schema, list):
        return [map_schemas(part, change) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {}
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME:
            copy[key] = {name: map_schemas(part, change) for name, part in value.items()}
        else:
            copy[key] = value if key in _VALUES else map_schemas(value, change)
    return change(copy)


def simplify_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema for the model: without redundant keywords, and with non-recursive definitions inlined."""
    schema = map_schemas(schema, lambda part: {key: value for key, value in part.items() if _is_needed(key, value)})
    if "$defs" not in schema:
        return schema
    with suppress(ToolDefinitionError):  # the inlined schema would be too large
        inlined = inline_references(schema)
        if len(str(inlined)) <= max(len(str(schema)), _INLINE_LIMIT):
            schema = inlined
    return {key: schema[key] for key in sorted(schema, key=lambda key: key != "$defs")}


def _is_needed(key: str, value: Any) -> bool:
    # pydantic's titles repeat the names and cost tokens; OpenAPI's discriminator refers to definitions and repeats the
    # `const` in each of them
    if key in ("title", "discriminator") or (key, value) == ("description", ""):
        return False
    return key != "default" or _is_json(value)


def _is_json(value: Any) -> bool:
    """Return whether JSON in UTF-8 can represent a plain value; it cannot for NaN and lone surrogates."""
    try:
        return bool(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError):
        return False


def close_objects(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a schema whose objects forbid extra fields unless they allow them, and whether one of them does."""
    is_open = False

    def close(part: dict[str, Any]) -> dict[str, Any]:
        nonlocal is_open
        if "properties" not in part:
            return part
        extra = part.get("additionalProperties", False)
        is_open = is_open or extra is not False
        return {**part, "additionalProperties": extra}

    closed = map_schemas(schema, close)
    return closed, is_open
