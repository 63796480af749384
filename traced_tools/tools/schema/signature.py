"""Reads the parameters of a function from its signature, annotations and docstring."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, GetJsonSchemaHandler, RootModel
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema
from typing_extensions import get_type_hints, is_typeddict

from traced_tools.core.checks import expect
from traced_tools.core.frozen import frozen
from traced_tools.core.tool_context import ToolContext
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.schema.docstrings import read_docstring
from traced_tools.tools.schema.values import name_in_schema

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_FIELD_SETTINGS = [
    name for name in inspect.signature(Field).parameters if hasattr(FieldInfo, name) and "default" not in name
]
_LAZY = (Iterable, Iterator, Generator)
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@frozen
class ToolParam:
    """Describes a tool's parameter in `Annotated[..., ToolParam(...)]`.

    Args:
        description: the description that the model reads; by default that of `Field` or of the docstring.
        required: whether the model must pass the parameter; by default, it must unless the parameter has a default or
            may be None. It has no effect on the fields of a pydantic model.
    """

    description: str | None = None
    required: bool | None = None

    def __post_init__(self) -> None:
        expect("description", self.description, (str, type(None)), "a str or None")
        expect("required", self.required, (bool, type(None)), "True, False or None")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the description to the JSON schema of the annotated parameter, field or part of a union."""
        described = {} if self.description is None else {"description": self.description}
        return {**handler(schema), **described}


class Signature:
    """The parameters of a function, as a tool.

    Args:
        function: the function.

    Attributes:
        name: the function's name, for errors.
        parameters: the parameters that the model fills, without those that a `functools.partial` binds by name.
        context_parameters: the names of the parameters annotated `ToolContext`, which the loop fills.
        returns_nothing: whether the function is annotated `-> None`.
        description: the docstring up to its first section.

    Raises:
        ToolDefinitionError: for a function without a readable signature or with annotations that cannot be resolved.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name: str = getattr(function, "__qualname__", type(function).__name__)
        annotated = annotated_function(function)
        hints = _hints(self.name, annotated)
        docstring = read_docstring(function)
        self._given = tuple(function.keywords) if isinstance(function, functools.partial) else ()
        self.description = docstring.description
        returned = getattr(annotated, "__annotations__", {}).get("return", Any)
        self.returns_nothing = returned in (None, "None") and not isinstance(function, type)
        self.context_parameters: list[str] = []
        self.parameters: list[Parameter] = []
        for parameter in _parameters(self.name, function):
            hint = hints.get(parameter.name, parameter.annotation)
            if not _is_context(hint):
                self.parameters.append(_parameter(self.name, parameter, hint, docstring.parameters.get(parameter.name)))
            elif parameter.kind in _NAMED:
                self.context_parameters.append(parameter.name)
            else:
                raise ToolDefinitionError(f"{self.name} cannot be a tool: its ToolContext must be a named parameter")

    @property
    def required(self) -> list[str]:
        """The names of the required parameters, as the model sees them."""
        return [parameter.key for parameter in self.parameters if parameter.is_named and parameter.required]

    @property
    def reserved(self) -> frozenset[str]:
        """Names that the model must not pass: those of the context, and those that a `functools.partial` binds."""
        return frozenset([*self.context_parameters, *self._given])

    @property
    def takes_anything(self) -> bool:
        """Whether the function takes keyword arguments of any name."""
        return any(parameter.is_open for parameter in self.parameters)


class Parameter:
    """A parameter that the model fills.

    Args:
        parameter: the parameter in Python's signature.
        hint: its annotation, `empty` if it has none.
        documented: its description in the docstring.

    Attributes:
        name: its name in the function.
        key: its name for the model, which a `Field` alias may change.
        hint: its type with all metadata except the default.
        default: the default in the schema; `PydanticUndefined` if there is none or only a factory.
        required: whether the model must pass it, according to `ToolParam`, or else to its default and type.
        is_named: whether it can be passed by name.
        is_open: whether it is `**kwargs`.
        has_own_default: whether its default is in the function's signature, and not in a `Field`.
    """

    def __init__(self, parameter: inspect.Parameter, hint: Any, documented: str | None) -> None:
        self.name = parameter.name
        self.is_named = parameter.kind in _NAMED
        self.is_open = parameter.kind is parameter.VAR_KEYWORD
        self._stars = _STARS.get(parameter.kind, "")
        hint = _full_hint(parameter, hint)
        self._field = field = FieldInfo.from_annotation(hint)
        self.has_own_default = parameter.default is not parameter.empty and not isinstance(parameter.default, FieldInfo)
        self.default: Any = parameter.default if self.has_own_default else field.default
        options = next((item for item in field.metadata if isinstance(item, ToolParam)), ToolParam())
        has_default = self.has_own_default or not field.is_required()
        is_optional = has_default or any(kind is type(None) for kind in _alternatives(field.annotation))
        self.required = not is_optional if options.required is None else options.required
        self.key = name_in_schema(self.name, field.validation_alias)
        described = options.description or field.description or documented
        if field.is_required():
            self.hint = hint if described == field.description else Annotated[hint, Field(description=described)]
        else:
            self.hint = _without_default(field, described)

    def default_if_omitted(self) -> Any:
        """Return a fresh value for an omitted argument, if the function's signature has no default."""
        if self._field.is_required():
            return None
        return self._field.get_default(call_default_factory=True, validated_data={})

    @property
    def has_fields(self) -> bool:
        """Whether it is a required model, dataclass or typed dictionary, whose fields can be the tool's arguments."""
        kind: Any = get_origin(self._field.annotation) or self._field.annotation
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, RootModel)
        return self.required and self.is_named and (is_model or is_typeddict(kind) or dataclasses.is_dataclass(kind))

    def __str__(self) -> str:
        return self._stars + self.name


def _parameter(function: str, parameter: inspect.Parameter, hint: Any, documented: str | None) -> Parameter:
    try:
        return Parameter(parameter, hint, documented)
    except Exception as error:  # an annotation may be any object
        raise ToolDefinitionError(
            f"{function} cannot be a tool: the annotation of {parameter.name} is not a type ({type(error).__name__})"
        ) from error


def _full_hint(parameter: inspect.Parameter, hint: Any) -> Any:
    """Return the annotation of a parameter, including a `Field` that is its default."""
    hint = Any if hint is parameter.empty else hint
    if get_origin(hint) in _LAZY:  # pydantic would validate the items only when the tool reads them
        hint = list[get_args(hint)[0]]  # type: ignore[misc]
    return Annotated[hint, parameter.default] if isinstance(parameter.default, FieldInfo) else hint


def _without_default(field: FieldInfo, description: str | None) -> Any:
    """Return an annotation for a field without its default; with a default, pydantic would never require it."""
    settings = {**{name: getattr(field, name) for name in _FIELD_SETTINGS}, "description": description}
    without_default = Field(**{name: value for name, value in settings.items() if value is not None})
    return Annotated[(field.annotation, *field.metadata, without_default)]


def _alternatives(hint: Any) -> Iterator[Any]:
    """Yield the types that a hint allows, from its unions and without metadata."""
    if get_origin(hint) is Annotated:
        yield from _alternatives(get_args(hint)[0])
    elif get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            yield from _alternatives(member)
    else:
        yield hint


def _is_context(hint: Any) -> bool:
    return any(isinstance(kind, type) and issubclass(kind, ToolContext) for kind in _alternatives(hint))


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    bound: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        bound = function.keywords  # hidden from the model: it may be a secret
        # a new partial: after `functools.update_wrapper`, `inspect.signature` ignores what the partial binds
        function = functools.partial(function.func, *function.args, **bound)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        raise ToolDefinitionError(
            f"{name} cannot be a tool: Python cannot inspect its parameters; wrap it in a function"
        ) from None
    of_a_class = inspect.isfunction(function) and "." in name.rpartition("<locals>.")[2]
    if of_a_class and parameters and parameters[0].name == "self":
        raise ToolDefinitionError(f"{name} is a method of a class: pass the method of an instance, or the instance")
    return [parameter for parameter in parameters if parameter.name not in bound]


def annotated_function(function: Callable[..., Any]) -> Any:
    """Return the object that has the annotations of a callable."""
    target = inspect.unwrap(getattr(function, "__func__", function))
    while isinstance(target, functools.partial):
        target = inspect.unwrap(getattr(target.func, "__func__", target.func))
    if isinstance(target, type):
        return target.__init__  # type: ignore[misc]  # the `__init__` of exactly this class
    return target if isinstance(target, types.FunctionType | types.BuiltinFunctionType) else type(target).__call__


def _hints(name: str, annotated: Any) -> dict[str, Any]:
    # without the return type: the model does not need it, and it is often imported for type checkers only
    hints = {key: hint for key, hint in getattr(annotated, "__annotations__", {}).items() if key != "return"}
    stand_in = functools.update_wrapper(lambda: None, annotated)
    stand_in.__annotations__ = hints
    try:
        return get_type_hints(stand_in, include_extras=True)
    except Exception as error:
        unknown = error.name if isinstance(error, NameError) else None
        reason = f"{unknown} is not defined where the function is" if unknown else type(error).__name__
        raise ToolDefinitionError(f"{name} cannot be a tool: its annotations cannot be read: {reason}") from error
