"""The JSON Schema of a function's arguments, and the keyword arguments that JSON text stands for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, NotRequired, Required
from weakref import WeakKeyDictionary

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.arguments import misfit
from traced_tools.tools.signature import Parameter, Signature


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
        self._absent: dict[str, None] = {}
        self._defaults: dict[str, FieldInfo] = {}
        if input_type is None and len(signature.parameters) == 1 and signature.parameters[0].has_fields:
            input_type = signature.parameters[0].hint
        if input_type is None:
            self._adapter, schema = self._of_parameters(signature)
        else:
            self._adapter, schema = self._of_type(signature, input_type)
        self.json_schema, closed = _closed(schema)
        self._extra: Any = "forbid" if closed else None

    def _of_type(self, signature: Signature, input_type: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
        if len(signature.parameters) != 1 or not signature.parameters[0].is_named:
            raise ToolDefinitionError(f"{signature.name} with an input_type must take one named argument, its instance")
        self._whole = signature.parameters[0].name
        adapter = _adapter(signature.name, input_type)
        schema = _at_the_root(_without_titles(adapter.json_schema()))
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
        adapter = _adapter(signature.name, with_config(ConfigDict(extra="forbid"))(arguments))
        schema = _without_titles(adapter.json_schema())
        for parameter in signature.parameters:
            _add_default(schema["properties"][parameter.name], parameter)
        return adapter, schema

    def _field(self, function: str, parameter: Parameter) -> Any:
        if not parameter.is_named:
            raise ToolDefinitionError(
                f"{function} cannot be a tool: the model fills parameters by name, so {parameter} has no place; "
                "give each value a named parameter, or give input_schema="
            )
        if isinstance(parameter.default, FieldInfo):
            self._defaults[parameter.name] = parameter.default
        elif not parameter.required and not parameter.has_default:
            self._absent[parameter.name] = None
        hint = parameter.hint
        if parameter.description is not None:
            hint = Annotated[hint, Field(description=parameter.description)]
        return Required[hint] if parameter.required else NotRequired[hint]

    def check(self, text: str) -> dict[str, Any]:
        """Return the keyword arguments that JSON text stands for; raises `Misfit`."""
        try:
            values: Any = self._adapter.validate_json(text, extra=self._extra)
        except ValidationError as error:
            wrong = misfit(error, text)
        else:
            return self._keywords(values)
        raise wrong

    def _keywords(self, values: Any) -> dict[str, Any]:
        if self._whole is not None:
            return {self._whole: values}
        for name, field in self._defaults.items():
            if name not in values:
                values[name] = field.get_default(call_default_factory=True, validated_data={})
        return {**self._absent, **values} if self._absent else values


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


def _adapter(function: str, arguments: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(arguments)
    except Exception as error:
        raise ToolDefinitionError(
            f"{function} cannot be a tool: pydantic finds no schema for its parameters; annotate them with types that "
            "pydantic can validate"
        ) from error


def _add_default(schema: dict[str, Any], parameter: Parameter) -> None:
    """Tell the model what a parameter is when it is left out, if JSON can tell."""
    if parameter.has_default and not isinstance(parameter.default, FieldInfo) and "default" not in schema:
        with suppress(ValueError, TypeError, RecursionError):
            schema["default"] = to_jsonable_python(parameter.default)


_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs")
_VALUES = ("default", "const", "enum", "examples")


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


def _without_titles(schema: dict[str, Any]) -> Any:
    """Return a schema without the titles pydantic makes of names: the model reads those, and pays for each token."""
    return _mapped(schema, lambda each: {key: value for key, value in each.items() if key != "title"})


def _at_the_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose root is an object and not a reference to one, as that of a recursive type is."""
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**schema["$defs"][name], "$defs": schema["$defs"]} if name else schema


def _closed(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a schema whose objects take no fields but their own, and whether that could be done.

    A model that says `extra="allow"` takes more; pydantic can then not be told to refuse them elsewhere.
    """
    is_open = False

    def close(each: dict[str, Any]) -> dict[str, Any]:
        nonlocal is_open
        is_open = is_open or ("properties" in each and each.get("additionalProperties", False) is not False)
        return {**each, "additionalProperties": False} if "properties" in each else each

    closed = _mapped(schema, close)
    return (schema, False) if is_open else (closed, True)
