"""The JSON Schema of a function's arguments, and the keyword arguments that JSON text stands for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
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
from traced_tools.tools.schema.json_schema import UNKNOWN_FIELD, ArgumentProblem, SchemaCheck
from traced_tools.tools.schema.signature import Parameter, Signature
from traced_tools.tools.schema.values import to_json_value


class ArgumentSchema:
    """The arguments of one function: their JSON Schema, and how JSON text becomes keyword arguments.

    Args:
        signature: what the function takes.
        input_type: a type whose instance is the function's only argument; its fields are what the model fills. By
            default that of an only parameter that has fields, else the model fills the parameters.

    Raises:
        ToolDefinitionError: for a parameter no JSON object can fill.
    """

    def __init__(self, signature: Signature, input_type: Any = None) -> None:
        self._whole: str | None = None
        self._parameters = signature.parameters
        self._optional: list[Parameter] = []
        if input_type is None and len(signature.parameters) == 1 and signature.parameters[0].has_fields:
            input_type = signature.parameters[0].hint
        if input_type is None:
            self._adapter, schema = self._of_parameters(signature)
        else:
            self._adapter, schema = self._of_type(signature, input_type)
        self.json_schema, is_open = _closed(schema)
        # pydantic can forbid further fields in all models or in none: beside one that takes them, the schema decides
        self._extra: Any = None if is_open else "forbid"
        self._fields = SchemaCheck(self.json_schema, signature.name) if is_open else None

    def _of_type(self, signature: Signature, input_type: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
        if len(signature.parameters) != 1 or not signature.parameters[0].is_named:
            raise ToolDefinitionError(f"{signature.name} with an input_type must take one named argument, its instance")
        self._whole = signature.parameters[0].name
        adapter, schema = _adapted(signature, input_type)
        schema = _told(schema)
        if "properties" not in schema:
            raise ToolDefinitionError(
                f"{signature.name} cannot be a tool: its input_type has no fields that a JSON object could fill; "
                "use a pydantic model, a dataclass or a TypedDict"
            )
        return adapter, schema

    def _of_parameters(self, signature: Signature) -> tuple[TypeAdapter[Any], dict[str, Any]]:
        # a typed dictionary and not a model: any parameter name is allowed in it, `json` and `model_config` too
        fields: Any = {each.name: self._field(signature.name, each) for each in signature.parameters}
        arguments: Any = TypedDict("Arguments", fields)  # type: ignore[misc]
        adapter, schema = _adapted(signature, with_config(ConfigDict(extra="forbid", allow_inf_nan=False))(arguments))
        for parameter in signature.parameters:
            _add_default(schema["properties"].get(parameter.key, {}), parameter)
        return adapter, _told(schema)

    def _field(self, function: str, parameter: Parameter) -> Any:
        if not parameter.is_named:
            raise ToolDefinitionError(
                f"{function} cannot be a tool: the model fills parameters by name, so {parameter} has no place; "
                "give each value a named parameter, or take **kwargs and give input_schema="
            )
        if parameter.required:
            return parameter.hint
        if not parameter.has_own_default:
            self._optional.append(parameter)
        return NotRequired[parameter.hint]

    def check(self, text: str) -> dict[str, Any]:
        """Return the keyword arguments that JSON text stands for; raises `ArgumentValidationError`."""
        if "NaN" in text or "Infinity" in text:  # numbers to pydantic, which JSON does not have
            read_json(text)
        try:
            values = self._adapter.validate_json(text, extra=self._extra)
        except ValidationError as error:
            wrong = ArgumentValidationError.from_pydantic_error(error, text)
        else:
            if self._fields is not None:
                self._check_fields(self._fields.problems(read_json(text)))
            return self._keywords(values)
        raise wrong

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the JSON form of keyword arguments, with the defaults of those that are left out.

        Args:
            value: what `check` returns.
            text: the JSON text that it stands for. A part without a JSON form is taken from there; a default without
                one is left out.
        """
        if self._whole is not None:
            whole: dict[str, Any] = self._json_form(value, text, self._whole, None)
            return whole
        found: dict[str, Any] = {}
        for parameter in self._parameters:
            if parameter.name in value:
                found[parameter.key] = self._json_form(value, text, parameter.name, parameter.key)
            elif parameter.has_own_default:
                with suppress(ValueError, RecursionError):
                    found[parameter.key] = to_json_value(parameter.default)
        return found

    def _json_form(self, value: dict[str, Any], text: str, name: str, key: str | None) -> Any:
        """Return the JSON form of one keyword argument, which the model writes as `key`, or as the whole text."""
        try:
            return to_json_value(value[name])
        except (ValueError, RecursionError):
            written = read_json(text)
        written = written if key is None else written.get(key)
        try:
            return to_json_value(
                self.check(text)[name], written
            )  # another value: the tool reads the iterables of its own
        except RecursionError:  # so deep that only the text can say it
            return written

    def _check_fields(self, found: Iterable[ArgumentProblem]) -> None:
        """Raise `ArgumentValidationError` for fields that an object does not have; of all else pydantic has judged."""
        if unknown := [problem for problem in found if problem.text.startswith(UNKNOWN_FIELD)]:
            raise ArgumentValidationError(unknown)

    def _keywords(self, values: Any) -> dict[str, Any]:
        if self._whole is not None:
            return {self._whole: values}
        for parameter in self._optional:
            if parameter.name not in values:
                values[parameter.name] = parameter.default_if_omitted()
        return values  # type: ignore[no-any-return]


class StrictArguments:
    """Arguments that a developer's own JSON Schema checks first and the function's types after it.

    Args:
        given: the developer's schema.
        typed: the schema that the annotations make.
    """

    def __init__(self, given: SchemaArguments, typed: ArgumentSchema) -> None:
        self._given = given
        self._typed = typed
        self.as_json = typed.as_json

    def check(self, text: str) -> dict[str, Any]:
        """Return the keyword arguments that JSON text stands for; raises `ArgumentValidationError`."""
        self._given.check(text)
        return self._typed.check(text)


_SIGNATURES: WeakKeyDictionary[Any, dict[bool, Signature]] = WeakKeyDictionary()
_SCHEMAS: WeakKeyDictionary[Signature, ArgumentSchema] = WeakKeyDictionary()


def signature_of(function: Callable[..., Any]) -> Signature:
    """Return what `function` takes, read once per function however many objects it is a method of."""
    method = getattr(function, "__func__", None)
    try:
        known = _SIGNATURES.setdefault(method or function, {})
    except TypeError:  # an object that has no hash or cannot be referred to weakly
        known = {}
    is_method = method is not None
    if is_method not in known:
        known[is_method] = Signature(function)
    return known[is_method]


def schema_of(signature: Signature) -> ArgumentSchema:
    """Return the schema of a function's arguments, made once."""
    try:
        return _SCHEMAS[signature]
    except KeyError:
        return _SCHEMAS.setdefault(signature, ArgumentSchema(signature))


class _Generator(GenerateJsonSchema):
    """Leaves out, without a warning, a default that JSON cannot hold."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (pydantic's own name and type)


def _adapted(signature: Signature, arguments: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    try:
        adapter = TypeAdapter(arguments)
        return adapter, adapter.json_schema(schema_generator=_Generator)
    except Exception as error:
        culprit = _without_schema(signature) or "its input_type"
        raise ToolDefinitionError(
            f"{signature.name} cannot be a tool: {culprit} must be of a type that pydantic can validate and JSON can "
            f"hold. {str(error).splitlines()[0].split('. ')[0]}"
        ) from error


def _without_schema(signature: Signature) -> str | None:
    """Return the parameter that pydantic has no schema for."""
    for parameter in signature.parameters:
        try:
            hint: Any = parameter.hint
            TypeAdapter(hint).json_schema(schema_generator=_Generator)
        except Exception:
            return f"its parameter {parameter}"
    return None


def check_valid_schema(signature: Signature, schema: Mapping[str, Any]) -> None:
    """Raise `ToolDefinitionError` for a developer's own schema by which nothing could be checked."""
    if not SchemaCheck(schema, signature.name).usable:
        raise ToolDefinitionError(
            f"the input_schema of {signature.name} is no valid JSON Schema, or refers to what is not in it"
        )


def check_input_schema(signature: Signature, schema: Mapping[str, Any], typed: ArgumentSchema | None) -> None:
    """Check that a JSON Schema is one of what a function takes.

    Args:
        signature: what the function takes.
        schema: the JSON Schema.
        typed: the schema that its annotations make; None if it takes anything.

    Raises:
        ToolDefinitionError: when it is not.
    """
    if schema.get("type", "object") != "object":
        raise ToolDefinitionError(
            f"the input_schema of {signature.name} must be of type object: arguments are given by name"
        )
    told = schema.get("properties")
    if not isinstance(told, dict):
        return
    required = signature.required if typed is None else typed.json_schema.get("required", ())
    unknown = [] if typed is None else sorted(told.keys() - typed.json_schema["properties"].keys())
    missing = [each for each in required if each not in told]
    if unknown:
        raise ToolDefinitionError(
            f"the input_schema of {signature.name} has {', '.join(unknown)}, which it does not take"
        )
    if missing:
        raise ToolDefinitionError(f"the input_schema of {signature.name} lacks {', '.join(missing)}, which it requires")


def _add_default(schema: dict[str, Any], parameter: Parameter) -> None:
    """Tell the model what a parameter is when it is left out, if JSON can tell."""
    default = parameter.default
    if default is not PydanticUndefined and not hasattr(default, "__next__"):  # reading an iterator would use it up
        with suppress(Exception):  # a serializer of the developer's own may raise anything
            schema["default"] = to_jsonable_python(default)


_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs")
_SMALL = 4_000
"""Characters up to which a schema is written out without `$defs`, even if that makes it longer."""
_VALUES = ("default", "const", "enum", "examples", "discriminator")


def _mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a schema with `change` made to it and to each schema in it."""
    if isinstance(schema, list):
        return [_mapped(each, change) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return change({key: _inner(key, value, change) for key, value in schema.items()})


def _inner(key: str, value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if key in _SCHEMAS_BY_NAME:
        return {name: _mapped(schema, change) for name, schema in value.items()}
    return value if key in _VALUES else _mapped(value, change)


def _told(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema as the model reads it: definitions stand where they are used, but for those in a circle."""
    schema = _mapped(schema, lambda each: {key: value for key, value in each.items() if _is_told(key, value)})
    if "$defs" not in schema:
        return schema
    with suppress(ToolDefinitionError):  # it would grow beyond measure
        written_out = inline_references(schema)
        if len(str(written_out)) <= max(len(str(schema)), _SMALL):
            schema = written_out
    return {key: schema[key] for key in sorted(schema, key=lambda key: key != "$defs")}


def _is_told(key: str, value: Any) -> bool:
    # not the titles pydantic makes of names: the model reads those, and pays for each token; nor the discriminator of
    # OpenAPI, which refers to definitions and says no more than the `const` in each of them
    return key not in ("title", "discriminator") and (key != "default" or _is_json(value))


def _is_json(value: Any) -> bool:
    """Whether JSON has a form for a plain value: it has none for NaN, nor UTF-8 for half a character."""
    try:
        return bool(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError):
        return False


def _closed(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a schema whose objects take no fields but their own unless they say so, and whether one says so."""
    is_open = False

    def close(each: dict[str, Any]) -> dict[str, Any]:
        nonlocal is_open
        if "properties" not in each:
            return each
        further = each.get("additionalProperties", False)
        is_open = is_open or further is not False
        return {**each, "additionalProperties": further}

    closed = _mapped(schema, close)
    return closed, is_open
