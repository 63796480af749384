"""What a function takes and gives, read from its signature, annotations and docstring."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, GetJsonSchemaHandler, RootModel
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema
from typing_extensions import get_type_hints, is_typeddict

from traced_tools.core.checks import expect
from traced_tools.core.tool_context import ToolContext
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.schema.docstrings import read_docstring
from traced_tools.tools.schema.values import name_in_schema

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_SAID_BY_FIELD = [
    name for name in inspect.signature(Field).parameters if hasattr(FieldInfo, name) and "default" not in name
]
_LAZY = (Iterable, Iterator, Generator)
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True)
class ToolParam:
    """What `Annotated[..., ToolParam(...)]` says of a tool's parameter.

    Args:
        description: what the model is told about it; by default what `Field` or the docstring says.
        required: whether the model must give it; None for: required unless it has a default or may be None. Only a
            parameter heeds it: a field of a model is required as the model says.
    """

    description: str | None = None
    required: bool | None = None

    def __post_init__(self) -> None:
        expect("description", self.description, (str, type(None)), "a str or None")
        expect("required", self.required, (bool, type(None)), "True, False or None")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe what is annotated with it, be it a parameter, a field or a part of a union."""
        described = {} if self.description is None else {"description": self.description}
        return {**handler(schema), **described}


class Signature:
    """What a function takes, apart from the tool context.

    Args:
        function: the function.

    Attributes:
        name: the function's name, for errors.
        parameters: those the model fills; what a `functools.partial` has given is not among them.
        context_parameters: the names of those annotated `ToolContext`, which the loop fills.
        returns_nothing: whether the function is annotated `-> None`.
        description: what the docstring says before its first section.

    Raises:
        ToolDefinitionError: for a function whose parameters Python does not tell.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name: str = getattr(function, "__qualname__", type(function).__name__)
        annotated = _annotated(function)
        hints = _hints(self.name, annotated)
        docstring = read_docstring(function)
        self._given = tuple(function.keywords) if isinstance(function, functools.partial) else ()
        self.description = docstring.description
        returned = getattr(annotated, "__annotations__", {}).get("return", Any)
        self.returns_nothing = returned in (None, "None") and not isinstance(function, type)
        self.context_parameters: list[str] = []
        self.parameters: list[Parameter] = []
        for each in _parameters(self.name, function):
            hint = hints.get(each.name, each.annotation)
            if not _is_context(hint):
                self.parameters.append(_parameter(self.name, each, hint, docstring.parameters.get(each.name)))
            elif each.kind in _NAMED:
                self.context_parameters.append(each.name)
            else:
                raise ToolDefinitionError(f"{self.name} cannot be a tool: its ToolContext must be given by name")

    @property
    def required(self) -> list[str]:
        """The names of the parameters that must be given."""
        return [parameter.key for parameter in self.parameters if parameter.is_named and parameter.required]

    @property
    def reserved(self) -> frozenset[str]:
        """Names that are not the model's to give: the context's, and what a `functools.partial` has given."""
        return frozenset([*self.context_parameters, *self._given])

    @property
    def takes_anything(self) -> bool:
        """Whether the function takes keyword arguments of any name."""
        return any(parameter.is_open for parameter in self.parameters)


class Parameter:
    """A parameter the model fills.

    Args:
        parameter: as Python sees it.
        hint: its annotation, `empty` if it has none.
        documented: what the docstring says of it.

    Attributes:
        name: what the function calls it.
        key: what the model calls it; a `Field` may give it another name.
        hint: its type and all that is said of it, but for a default.
        default: what the model is told it is when left out; `PydanticUndefined` when that cannot be told.
        required: whether the model must give it: as `ToolParam` says, else unless it has a default or may be None.
        is_named: whether it can be given by name.
        is_open: whether it takes keyword arguments of any name.
        has_own_default: whether the function itself knows what it is when left out.
    """

    def __init__(self, parameter: inspect.Parameter, hint: Any, documented: str | None) -> None:
        self.name = parameter.name
        self.is_named = parameter.kind in _NAMED
        self.is_open = parameter.kind is parameter.VAR_KEYWORD
        self._stars = _STARS.get(parameter.kind, "")
        hint = _hint(parameter, hint)
        self._field = field = FieldInfo.from_annotation(hint)
        self.has_own_default = parameter.default is not parameter.empty and not isinstance(parameter.default, FieldInfo)
        self.default: Any = parameter.default if self.has_own_default else field.default
        said = next((item for item in field.metadata if isinstance(item, ToolParam)), ToolParam())
        has_default = self.has_own_default or not field.is_required()
        may_be_left_out = has_default or any(kind is type(None) for kind in _alternatives(field.annotation))
        self.required = not may_be_left_out if said.required is None else said.required
        self.key = name_in_schema(self.name, field.validation_alias)
        described = said.description or field.description or documented
        if field.is_required():
            self.hint = hint if described == field.description else Annotated[hint, Field(description=described)]
        else:
            self.hint = _without_default(field, described)

    def default_if_omitted(self) -> Any:
        """Return what it is when left out and the function has no default of its own; made anew each time."""
        if self._field.is_required():
            return None
        return self._field.get_default(call_default_factory=True, validated_data={})

    @property
    def has_fields(self) -> bool:
        """Whether it is a model, dataclass or typed dictionary that must be given: its fields can be the arguments."""
        kind: Any = get_origin(self._field.annotation) or self._field.annotation
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, RootModel)
        return self.required and self.is_named and (is_model or is_typeddict(kind) or dataclasses.is_dataclass(kind))

    def __str__(self) -> str:
        return self._stars + self.name


def _parameter(function: str, parameter: inspect.Parameter, hint: Any, documented: str | None) -> Parameter:
    try:
        return Parameter(parameter, hint, documented)
    except Exception as error:  # anything may stand where an annotation does
        raise ToolDefinitionError(
            f"{function} cannot be a tool: the annotation of {parameter.name} is no type ({type(error).__name__})"
        ) from error


def _hint(parameter: inspect.Parameter, hint: Any) -> Any:
    """Return all that annotation and default say of a parameter, as an annotation."""
    hint = Any if hint is parameter.empty else hint
    if get_origin(hint) in _LAZY:  # pydantic would check the items only when the tool reads them
        hint = list[get_args(hint)[0]]  # type: ignore[misc]
    return Annotated[hint, parameter.default] if isinstance(parameter.default, FieldInfo) else hint


def _without_default(field: FieldInfo, description: str | None) -> Any:
    """Return a field as a type; with a default in it, pydantic would never require it."""
    said = {**{name: getattr(field, name) for name in _SAID_BY_FIELD}, "description": description}
    kept = Field(**{name: value for name, value in said.items() if value is not None})
    return Annotated[(field.annotation, *field.metadata, kept)]


def _alternatives(hint: Any) -> Iterator[Any]:
    """Yield the types that a hint allows, out of its unions and without what is said of them."""
    if get_origin(hint) is Annotated:
        yield from _alternatives(get_args(hint)[0])
    elif get_origin(hint) in (Union, types.UnionType):
        for each in get_args(hint):
            yield from _alternatives(each)
    else:
        yield hint


def _is_context(hint: Any) -> bool:
    return any(isinstance(kind, type) and issubclass(kind, ToolContext) for kind in _alternatives(hint))


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    given: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        given = function.keywords  # not asked for: it may be a secret
        # a new one: `functools.update_wrapper` makes Python forget what the partial has given
        function = functools.partial(function.func, *function.args, **given)
    try:
        found = list(inspect.signature(function).parameters.values())
    except ValueError:
        raise ToolDefinitionError(
            f"{name} cannot be a tool: Python does not tell its parameters; wrap it in a function of your own"
        ) from None
    of_a_class = inspect.isfunction(function) and "." in name.rpartition("<locals>.")[2]
    if of_a_class and found and found[0].name == "self":
        raise ToolDefinitionError(f"{name} belongs to a class: pass the method of an instance, or the instance")
    return [each for each in found if each.name not in given]


def _annotated(function: Callable[..., Any]) -> Any:
    """Return what carries the annotations of a callable."""
    target = inspect.unwrap(getattr(function, "__func__", function))
    while isinstance(target, functools.partial):
        target = inspect.unwrap(getattr(target.func, "__func__", target.func))
    if isinstance(target, type):
        return target.__init__  # type: ignore[misc]  # of just this class
    return target if isinstance(target, types.FunctionType | types.BuiltinFunctionType) else type(target).__call__


def _hints(name: str, annotated: Any) -> dict[str, Any]:
    # not that of the result: it is nothing to a model, and is often defined for type checkers only
    hints = {key: hint for key, hint in getattr(annotated, "__annotations__", {}).items() if key != "return"}
    stand_in = functools.update_wrapper(lambda: None, annotated)
    stand_in.__annotations__ = hints
    try:
        return get_type_hints(stand_in, include_extras=True)
    except Exception as error:
        unknown = error.name if isinstance(error, NameError) else None
        why = f"{unknown} is not defined where the function is" if unknown else type(error).__name__
        raise ToolDefinitionError(f"{name} cannot be a tool: its annotations cannot be read: {why}") from error
