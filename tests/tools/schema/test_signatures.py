"""Functions of every kind as tools: their schema, and the arguments that they receive."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.markers import MARKER
from tests.stable_ids import stable_id
from traced_tools import ToolContext
from traced_tools.errors import InvalidArguments, ToolDefinitionError
from traced_tools.tools import FunctionToolCallback

if TYPE_CHECKING:
    from there import Nowhere  # type: ignore[import-not-found]


def made(function: Any, **settings: Any) -> FunctionToolCallback:
    return FunctionToolCallback(function, name="it", **settings)


def schema(function: Any, **settings: Any) -> dict[str, Any]:
    return made(function, **settings).definition.input_schema


def properties(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = schema(function)["properties"]
    return found


# Kinds of functions.


def plain(city: str, days: int = 3) -> str:
    return f"{city} {days}"


def with_context(city: str, context: ToolContext, days: int = 3) -> str:
    return f"{context['user']} {city} {days}"


def context_first(context: ToolContext, city: str) -> str:
    return f"{context['user']} {city} 3"


def keyword_only(*, city: str, context: ToolContext) -> str:
    return f"{context['user']} {city} 3"


def twice(first: ToolContext, city: str, second: ToolContext) -> str:
    return f"{first['user'] if first is second else None} {city} 3"


async def coroutine(city: str, days: int = 3) -> str:
    return f"{city} {days}"


async def coroutine_with_context(city: str, context: ToolContext) -> str:
    return f"{context['user']} {city} 3"


def loud(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@functools.lru_cache
def cached(city: str, days: int = 3) -> str:
    return f"{city} {days}"


def three(user: str, city: str, days: int) -> str:
    return f"{user} {city} {days}"


class Finder:
    """Has methods of every kind."""

    def method(self, city: str, days: int = 3) -> str:
        return f"{city} {days}"

    def method_with_context(self, city: str, context: ToolContext) -> str:
        return f"{context['user']} {city} 3"

    @staticmethod
    def static(city: str, days: int = 3) -> str:
        return f"{city} {days}"

    @classmethod
    def of_class(cls, city: str, days: int = 3) -> str:
        return f"{city} {days}"

    @classmethod
    def of_class_with_context(cls, context: ToolContext, city: str) -> str:
        return f"{context['user']} {city} 3"

    async def async_method(self, city: str, days: int = 3) -> str:
        return f"{city} {days}"

    @loud
    def wrapped(self, city: str, days: int = 3) -> str:
        return f"{city} {days}"

    given = functools.partialmethod(method, days=3)


class Caller:
    """An object that is called."""

    def __call__(self, city: str, days: int = 3) -> str:
        return f"{city} {days}"


class CallableWithContext:
    """Another one, without a hash."""

    __hash__ = None  # type: ignore[assignment]

    async def __call__(self, city: str, context: ToolContext) -> str:
        return f"{context['user']} {city} 3"


KINDS: dict[str, Any] = {
    "plain": plain,
    "coroutine": coroutine,
    "lambda": lambda city, days=3: f"{city} {days}",
    "wrapped": loud(plain),
    "wrapped twice": loud(loud(plain)),
    "cached": cached,
    "method": Finder().method,
    "static": Finder.static,
    "of class": Finder.of_class,
    "of class, by an instance": Finder().of_class,
    "async method": Finder().async_method,
    "wrapped method": Finder().wrapped,
    "partial method": Finder().given,
    "object": Caller(),
    "partial": functools.partial(three, "", days=3),
    "nested partial": functools.partial(functools.partial(three, ""), days=3),
    "partial of a method": functools.partial(Finder().method, days=3),
    "partial of a wrapped function": functools.partial(loud(plain), days=3),
    "partial of an object": functools.partial(Caller(), days=3),
    "wrapped partial": loud(functools.partial(plain, days=3)),
    "documented partial": functools.update_wrapper(functools.partial(three, ""), three),
}
KINDS_WITH_CONTEXT: dict[str, Any] = {
    "plain": with_context,
    "context first": context_first,
    "keyword only": keyword_only,
    "two of them": twice,
    "coroutine": coroutine_with_context,
    "lambda of a wrapper": loud(with_context),
    "method": Finder().method_with_context,
    "of class": Finder.of_class_with_context,
    "object": CallableWithContext(),
    "partial": functools.partial(with_context, days=3),
    "partial of a class's method": functools.partial(Finder.of_class_with_context),
}


@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_every_kind_are_tools(kind: str) -> None:
    callback = made(KINDS[kind])
    assert callback.definition.input_schema["required"][0] == "city"
    arguments = '{"city": "Bonn", "days": 3}' if kind == "documented partial" else '{"city": "Bonn"}'
    for text in (callback.call(arguments), asyncio.run(callback.acall(arguments))):
        assert text.strip() == "Bonn 3"


@pytest.mark.parametrize("kind", KINDS_WITH_CONTEXT)
def test_a_context_is_injected_into_functions_of_every_kind_and_never_in_the_schema(kind: str) -> None:
    callback, context = made(KINDS_WITH_CONTEXT[kind]), ToolContext({"user": "ann"})
    assert set(callback.definition.input_schema["properties"]) <= {"city", "days"}
    assert callback.call('{"city": "Bonn"}', context) == "ann Bonn 3"
    assert asyncio.run(callback.acall('{"city": "Bonn"}', context)) == "ann Bonn 3"


def test_a_parameter_of_any_object_is_ordinary_input() -> None:
    def show(what: object) -> str:
        return repr(what)

    assert properties(show) == {"what": {}}
    assert made(show).call('{"what": {"a": [1]}}', ToolContext({"user": "ann"})) == "{'a': [1]}"


def test_a_list_of_contexts_is_not_a_context() -> None:
    def show(contexts: list[ToolContext]) -> str:
        return ""

    with pytest.raises(ToolDefinitionError, match="show cannot be a tool"):
        made(show)


def test_a_subclass_of_tool_context_is_injected_too() -> None:
    class Own(ToolContext):
        """One of the application's."""

    def show(context: Any) -> str:
        return str(context["user"])

    show.__annotations__["context"] = Own
    assert made(show).call("{}", Own({"user": "ann"})) == "ann"


def by_position(context: ToolContext, /) -> str:
    return ""


def of_any_number(*contexts: ToolContext) -> str:
    return ""


@pytest.mark.parametrize("function", [by_position, of_any_number])
def test_a_context_that_cannot_be_passed_by_name_is_refused(function: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="its ToolContext must be a named parameter"):
        made(function)


def test_a_supplier_needs_no_input_and_a_consumer_gives_no_output() -> None:
    heard: list[str] = []

    def supply() -> str:
        return "here"

    def consume(text: str) -> None:
        heard.append(text)

    assert made(supply).call("") == made(supply).call("{}") == "here"
    assert (made(consume).call('{"text": "hi"}'), heard) == ("Done", ["hi"])


def test_iterators_of_every_kind_are_read() -> None:
    def numbers(up_to: int) -> Iterator[int]:
        yield from range(up_to)

    async def later(up_to: int) -> AsyncIterator[int]:
        for number in range(up_to):
            yield number

    for function in (numbers, later):
        assert made(function).call('{"up_to": 3}') == "[0,1,2]"
        assert asyncio.run(made(function).acall('{"up_to": 3}')) == "[0,1,2]"


@pytest.mark.parametrize("function", [os.getcwd, "a b".split], ids=["getcwd", "split"])
def test_a_builtin_with_a_readable_signature_is_a_tool(function: Any) -> None:
    assert made(function).call("{}") in (os.getcwd(), '["a","b"]')


@pytest.mark.parametrize("function", [len, math.hypot, max, str.upper], ids=lambda each: str(each.__name__))
def test_a_builtin_with_positional_parameters_is_refused(function: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=f"{function.__name__} cannot be a tool"):
        made(function)


def test_a_class_is_a_tool_with_its_constructors_arguments() -> None:
    @dataclass
    class Point:
        x: int

    class Line:
        def __init__(self, length: int, colour: str = "red") -> None:
            self.length = length

        def __repr__(self) -> str:
            return f"Line({self.length!r})"

    assert properties(Line) == {"length": {"type": "integer"}, "colour": {"type": "string", "default": "red"}}
    assert made(Line, result_converter=repr).call('{"length": "5"}') == "Line(5)"
    assert made(Point).call('{"x": "5"}') == '{"x":5}'


# What is not asked of the model.


def test_arguments_that_a_partial_binds_are_neither_required_nor_in_the_schema() -> None:
    def send(to: str, key: str, text: str = "") -> str:
        return f"{to} {key} {text}"

    callback = made(functools.partial(send, key=MARKER, text="hello"))
    assert list(callback.definition.input_schema["properties"]) == ["to"]
    assert MARKER not in str(callback.definition)
    assert callback.call('{"to": "ann"}') == f"ann {MARKER} hello"
    with pytest.raises(InvalidArguments) as caught:
        callback.call('{"to": "ann", "key": "mine"}')
    assert caught.value.problems == "key: is not a known field"


def test_a_partial_may_bind_the_context() -> None:
    callback = made(functools.partial(with_context, context=ToolContext({"user": "eve"})))
    assert callback.call('{"city": "Bonn"}', ToolContext({"user": "ann"})) == "eve Bonn 3"


def test_a_signature_set_by_a_decorator_is_used() -> None:
    def give(**kwargs: Any) -> str:
        return str(kwargs)

    number = inspect.Parameter("number", inspect.Parameter.KEYWORD_ONLY, annotation=int)
    give.__signature__ = inspect.Signature([number])  # type: ignore[attr-defined]
    assert made(give).call('{"number": "5"}') == "{'number': 5}"


# Annotations.


def test_the_return_annotation_is_optional_and_need_not_resolve() -> None:
    def find(city: str) -> Nowhere:
        return city

    assert made(find).call('{"city": "Bonn"}') == "Bonn"


def test_a_result_annotated_none_is_done_however_it_is_written() -> None:
    def unquoted(city: str) -> None: ...

    unquoted.__annotations__["return"] = None
    assert made(unquoted).call('{"city": "Bonn"}') == "Done"
    unquoted.__annotations__["return"] = "str"
    assert made(lambda: None).call("{}") == "null"


def misspelt(city: strr) -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


def no_expression(city: "the city") -> str:  # type: ignore[valid-type]  # noqa: F722
    return ""


def not_there(city: os.nothing) -> str:  # type: ignore[name-defined]
    return ""


@pytest.mark.parametrize(
    ("function", "why"),
    [(misspelt, "strr is not defined"), (no_expression, "SyntaxError"), (not_there, "AttributeError")],
)
def test_an_annotation_that_cannot_be_read_is_refused_by_the_functions_name(function: Any, why: str) -> None:
    with pytest.raises(ToolDefinitionError, match=f"{function.__name__} cannot be a tool: .*{why}"):
        made(function)


@pytest.mark.parametrize("annotation", [5, "int", [int], object(), Callable[[], int], type(sys)], ids=stable_id)
def test_a_misleading_annotation_is_refused_or_resolved(annotation: Any) -> None:
    def find(city: Any) -> str:
        return repr(city)

    find.__annotations__["city"] = annotation
    if annotation == "int":
        assert made(find).call('{"city": 5}') == "5"
    else:
        with pytest.raises(ToolDefinitionError, match="find cannot be a tool"):
            made(find)


def test_parameters_without_annotations_accept_anything_and_may_have_defaults() -> None:
    def find(city, days=3):  # type: ignore[no-untyped-def]
        return [city, days]

    assert schema(find) == {
        "type": "object",
        "properties": {"city": {}, "days": {"default": 3}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert made(find).call('{"city": null}') == "[null,3]"
