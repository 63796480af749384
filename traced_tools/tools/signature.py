"""What a function takes and gives, read from its signature, annotations and docstring."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typing_extensions import get_type_hints, is_typeddict

from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.context import ToolContext
from traced_tools.tools.docstrings import read_docstring

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class ToolParam:
    """What `Annotated[..., ToolParam(...)]` says of a tool's parameter.

    Args:
        description: what the model is told about it; by default what `Field` or the docstring says.
        required: whether the model must give it; None for: required unless it has a default or may be None.
    """

    description: str | None = None
    required: bool | None = None


class Signature:
    """What a function takes, apart from the tool context.

    Args:
        function: the function.

    Attributes:
        name: the function's name, for errors.
        parameters: those the model fills.
        context_parameter: the one annotated `ToolContext`, which the loop fills.
        returns_nothing: whether the function is annotated `-> None`.
        summary: what the docstring says first.

    Raises:
        ToolDefinitionError: for a function whose parameters Python does not tell.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name: str = getattr(function, "__qualname__", type(function).__name__)
        docstring = read_docstring(function)
        hints = _hints(function)
        self.summary = docstring.summary
        self.returns_nothing = hints.get("return") is type(None)
        self.context_parameter: str | None = None
        self.parameters: list[Parameter] = []
        for parameter in _parameters(self.name, function):
            hint = hints.get(parameter.name, Any)
            if ToolContext in (hint, *get_args(hint)):
                self.context_parameter = parameter.name
            else:
                self.parameters.append(Parameter(parameter, hint, docstring.parameters.get(parameter.name)))

    @property
    def takes_anything(self) -> bool:
        """Whether the function takes keyword arguments of any name."""
        return any(parameter.is_open for parameter in self.parameters)


class Parameter:
    """A parameter the model fills.

    Args:
        parameter: as Python sees it.
        hint: its annotation.
        documented: what the docstring says of it.
    """

    def __init__(self, parameter: inspect.Parameter, hint: Any, documented: str | None) -> None:
        self.name = parameter.name
        self.is_named = parameter.kind in _NAMED
        self.is_open = parameter.kind is parameter.VAR_KEYWORD
        self.default: Any = parameter.default
        if isinstance(self.default, FieldInfo):
            hint = Annotated[hint, self.default]
            self.default = parameter.empty if self.default.is_required() else self.default
        self.has_default = self.default is not parameter.empty
        self.hint = hint
        self._said = next((item for item in _metadata(hint) if isinstance(item, ToolParam)), ToolParam())
        self._documented = documented
        self._text = str(parameter)

    @property
    def required(self) -> bool:
        """Whether the model must give it: as `ToolParam` says, else unless it has a default or may be None."""
        said = self._said.required
        return not self.has_default and not _may_be_none(self.hint) if said is None else said

    @property
    def description(self) -> str | None:
        """What the model is told about it beyond what its annotation tells already."""
        in_hint = any(isinstance(item, FieldInfo) and item.description for item in _metadata(self.hint))
        return self._said.description or (None if in_hint else self._documented)

    @property
    def has_fields(self) -> bool:
        """Whether it is a model, dataclass or typed dictionary that must be given."""
        kind = get_args(self.hint)[0] if get_origin(self.hint) is Annotated else self.hint
        kind = get_origin(kind) or kind
        return self.is_named and not self.has_default and has_fields(kind)

    def __str__(self) -> str:
        return self._text


def has_fields(kind: Any) -> bool:
    """Whether the fields of a type can be a tool's arguments."""
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    return is_model or is_typeddict(kind) or (isinstance(kind, type) and dataclasses.is_dataclass(kind))


def _metadata(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())


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


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = inspect.unwrap(getattr(function, "__func__", function))
    while isinstance(target, functools.partial):
        target = inspect.unwrap(getattr(target.func, "__func__", target.func))
    if not isinstance(target, types.FunctionType | types.BuiltinFunctionType | type):
        target = type(target).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(
            f"{getattr(function, '__qualname__', function)} cannot be a tool: its annotation {error.name} is not "
            "defined where the function is"
        ) from error


def _may_be_none(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _may_be_none(get_args(hint)[0])
    return hint is type(None) or (get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint))
