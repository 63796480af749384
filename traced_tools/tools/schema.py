"""From a function's signature to the JSON Schema of its arguments, and from JSON text to its keyword arguments."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin
from weakref import WeakKeyDictionary

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict, get_type_hints

from traced_tools.errors import InvalidArguments, ToolDefinitionError
from traced_tools.tools.context import ToolContext


@dataclass(frozen=True)
class ToolParam:
    """What `Annotated[..., ToolParam(...)]` says of a tool's parameter.

    Args:
        description: what the model is told about it.
        required: whether the model must give it; None for: required unless it has a default or may be None.
    """

    description: str | None = None
    required: bool | None = None


class ArgumentSchema:
    """The arguments of one function: their JSON Schema, and how JSON text becomes keyword arguments.

    Args:
        function: the function; its parameter annotated `ToolContext`, if any, is left out of the schema.

    Raises:
        ToolDefinitionError: for a parameter no JSON object can fill.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        name = getattr(function, "__qualname__", type(function).__name__)
        hints = _hints(function)
        self.context_parameter: str | None = None
        self.returns_nothing = hints.get("return") is type(None)
        self._absent: dict[str, None] = {}
        fields: dict[str, Any] = {}
        for parameter in _parameters(name, function):
            hint = hints.get(parameter.name, Any)
            if ToolContext in (hint, *get_args(hint)):
                self.context_parameter = parameter.name
            else:
                fields[parameter.name] = self._field(name, parameter, hint)
        self._adapter = _adapter(name, fields)
        self.json_schema: dict[str, Any] = _without_titles(self._adapter.json_schema())

    def _field(self, function: str, parameter: inspect.Parameter, hint: Any) -> Any:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolDefinitionError(
                f"{function} cannot be a tool: the model fills parameters by name, so {parameter} has no place; "
                "give each value a named parameter"
            )
        described = _param(hint)
        has_default = parameter.default is not parameter.empty
        required = described.required
        if required is None:
            required = not has_default and not _may_be_none(hint)
        if not required and not has_default:
            self._absent[parameter.name] = None
        if described.description is not None:
            hint = Annotated[hint, Field(description=described.description)]
        return Required[hint] if required else NotRequired[hint]

    def bind(self, arguments: str) -> dict[str, Any]:
        """Return the keyword arguments that JSON text `arguments` stands for; raises `InvalidArguments`."""
        try:
            values: dict[str, Any] = self._adapter.validate_json(given(arguments))
        except ValidationError as error:
            problems = _problems(error)
        else:
            return {**self._absent, **values} if self._absent else values
        raise InvalidArguments(problems)


def given(arguments: str) -> str:
    """Return the arguments' text; what models send for no arguments at all, blank text and `null`, becomes `{}`."""
    text = arguments.strip()
    return "{}" if text in ("", "null") else text


_SCHEMAS: WeakKeyDictionary[Callable[..., Any], ArgumentSchema] = WeakKeyDictionary()
_METHOD_SCHEMAS: WeakKeyDictionary[Callable[..., Any], ArgumentSchema] = WeakKeyDictionary()


def argument_schema(function: Callable[..., Any]) -> ArgumentSchema:
    """Return the schema of `function`, made once per function however many objects it is a method of."""
    method = getattr(function, "__func__", None)
    schemas, key = (_SCHEMAS, function) if method is None else (_METHOD_SCHEMAS, method)
    try:
        return schemas[key]
    except KeyError:
        return schemas.setdefault(key, ArgumentSchema(function))
    except TypeError:  # an object that has no hash or cannot be referred to weakly
        return ArgumentSchema(function)


_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs")
_VALUES = ("default", "const", "enum", "examples")


def _without_titles(schema: Any) -> Any:
    """Return a schema without the titles pydantic makes of names: the model reads those, and pays for each token."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _inner(key, value) for key, value in schema.items() if key != "title"}


def _inner(key: str, value: Any) -> Any:
    if key in _SCHEMAS_BY_NAME:
        return {name: _without_titles(schema) for name, schema in value.items()}
    return value if key in _VALUES else _without_titles(value)


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = list(inspect.signature(function).parameters.values())
    except ValueError:
        raise ToolDefinitionError(
            f"{name} cannot be a tool: Python does not tell its parameters; wrap it in a function of your own"
        ) from None
    of_a_class = inspect.isfunction(function) and "." in name.rpartition("<locals>.")[2]
    if of_a_class and found and found[0].name == "self":
        raise ToolDefinitionError(f"{name} belongs to a class: pass the method of an instance, or the instance")
    return found


def _adapter(name: str, fields: dict[str, Any]) -> TypeAdapter[dict[str, Any]]:
    # a typed dictionary and not a model: any parameter name is allowed in it, `json` and `model_config` too
    arguments: Any = TypedDict("Arguments", fields)  # type: ignore[misc]
    try:
        configured: Any = with_config(ConfigDict(extra="forbid", hide_input_in_errors=True))(arguments)
        return TypeAdapter(configured)
    except Exception as error:
        raise ToolDefinitionError(
            f"{name} cannot be a tool: pydantic finds no schema for its parameters; annotate them with types that "
            "pydantic can validate"
        ) from error


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(target, types.FunctionType | types.BuiltinFunctionType | type):
        target = type(target).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(
            f"{getattr(function, '__qualname__', function)} cannot be a tool: its annotation {error.name} is not "
            "defined where the function is"
        ) from error


def _param(hint: Any) -> ToolParam:
    metadata = getattr(hint, "__metadata__", ())
    return next((item for item in metadata if isinstance(item, ToolParam)), ToolParam())


def _may_be_none(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _may_be_none(get_args(hint)[0])
    return hint is type(None) or (get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint))


def _problems(error: ValidationError) -> str:
    """Say what is wrong, field by field, in pydantic's words without its input values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}" for item in found[:10])
