"""Converts a Python type into the JSON Schema of an answer, and the text of an answer into a value of the type.

There are two ways to get such an answer. A provider that enforces a schema accepts only objects, so any other type
becomes the field `value` of an object, and the answer must be JSON and nothing else. Any other model reads the schema
in its instructions. Such a model often adds words or a code fence, so `read` searches its answer for the JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

from traced_tools.tools.schema.arguments import ArgumentValidationError, read_json
from traced_tools.tools.schema.callable_schema import SchemaGenerator, close_objects, simplify_schema
from traced_tools.tools.schema.fields import known_path
from traced_tools.tools.schema.json_schema import ArgumentProblem

T = TypeVar("T")

_MAX_PROBLEMS: Final = 10
_MAX_OPENINGS: Final = 100
_FENCED: Final = re.compile(r"```[\w-]*\s(.*?)```", re.DOTALL)
_OPENING: Final = re.compile(r"[{\[]")
_DECODER: Final = json.JSONDecoder()
_UNREADABLE: Final = (ValueError, TypeError)
"""What pydantic's parser raises: `TypeError` for a lone surrogate."""
_INSTRUCTIONS: Final = (
    "Answer with JSON only, without any other text and without a code fence. The JSON must match this JSON Schema:\n"
)


class InvalidOutput(NamedTuple):
    """What is wrong with an answer.

    Attributes:
        problems: one line for each problem, for the model. They may quote names that the model invented.
        places: the paths of the invalid values, with names from the schema only.
    """

    problems: tuple[str, ...]
    places: tuple[str, ...]


class OutputFormat(Generic[T]):
    """The form in which a model must write a value of a type.

    Args:
        kind: the type.
        enforced: whether the provider enforces the schema.
    """

    def __init__(self, kind: Any, *, enforced: bool) -> None:
        self.enforced = enforced
        self._adapter, self.schema = _adapter_and_schema(kind)
        self.is_wrapped = enforced and self.schema.get("type") != "object"
        if self.is_wrapped:
            fields: Any = {"value": kind}
            wrapper: Any = TypedDict("Answer", fields)  # type: ignore[misc]
            self._adapter, self.schema = _adapter_and_schema(with_config(ConfigDict(extra="forbid"))(wrapper))
        self._takes_words = not enforced and _takes_text(self.schema)
        self.instructions = "" if enforced else f"{_INSTRUCTIONS}{json.dumps(self.schema, ensure_ascii=False)}"

    def read(self, text: str, *, is_cut_off: bool = False) -> T | InvalidOutput:
        """Return the value in the text of an answer, or what is wrong with the text.

        Plain words are a value of `str`, or of a union that has it, unless they are cut off.
        """
        failures = []
        for candidate in (text,) if self.enforced else _find_jsons(text):
            try:
                value: Any = self._validate(candidate)
            except ArgumentValidationError as error:
                failures.append(error.problems)
            else:
                return value["value"] if self.is_wrapped else value  # type: ignore[no-any-return]
        if self._takes_words and not is_cut_off and text.strip() and not _has_object(text):
            with suppress(ValidationError):
                return self._adapter.validate_python(text.strip(), strict=True)  # type: ignore[no-any-return]
        return self._invalid(text, failures)

    def _validate(self, text: str) -> Any:
        if "NaN" in text or "Infinity" in text:  # pydantic accepts these numbers, which are not JSON
            read_json(text)
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            invalid = ArgumentValidationError.from_pydantic_error(error, text)
        raise invalid  # outside of `except`: pydantic's error quotes values and must not be chained

    def _invalid(self, text: str, failures: Sequence[Sequence[ArgumentProblem]]) -> InvalidOutput:
        if not text.strip():
            return InvalidOutput(("the answer is empty",), ("the answer",))
        # the last text is the longest piece of JSON in the answer, or the answer itself
        problems = failures[-1][:_MAX_PROBLEMS]
        lines = [f"{'.'.join(map(str, path)) or 'the answer'}: {text}" for path, text, _ in problems]
        places = [known_path(self.schema, path) or "the answer" for path, _, _ in problems]
        return InvalidOutput(tuple(dict.fromkeys(lines)), tuple(dict.fromkeys(places)))

    def read_partial(self, text: str) -> Any:
        """Return the JSON value that has arrived so far, which is not validated; None if there is none."""
        try:
            value = from_json(text, allow_partial="trailing-strings")
        except _UNREADABLE:
            value = None if self.enforced else _find_partial_json(text)
        if self.is_wrapped:
            return value.get("value") if isinstance(value, dict) else None
        return value


@lru_cache(maxsize=512)
def _cached_format(kind: Any, *, enforced: bool) -> OutputFormat[Any]:
    return OutputFormat(kind, enforced=enforced)


def output_format(kind: Any, *, enforced: bool) -> OutputFormat[Any]:
    """Return the format of a type, cached if the type has a hash.

    Raises:
        TypeError: if pydantic cannot validate the type, or JSON cannot represent it.
    """
    try:
        hash(kind)
    except TypeError:  # a type without a hash, such as an `Annotated` with a list
        return OutputFormat(kind, enforced=enforced)
    return _cached_format(kind, enforced=enforced)


class PartialOutput:
    """The output of a streamed answer so far, which is parsed when it is read.

    Args:
        form: the format of the output.
        pieces: the pieces of the answer's text; further pieces are appended while the answer arrives.
    """

    __slots__ = ("_end", "_form", "_pieces")

    def __init__(self, form: OutputFormat[Any], pieces: list[str]) -> None:
        self._form = form
        self._pieces = pieces
        self._end = len(pieces)

    @property
    def value(self) -> Any:
        """The JSON value so far; None if there is none."""
        return self._form.read_partial("".join(self._pieces[: self._end]))

    def __reduce__(self) -> tuple[Any, ...]:
        return ParsedOutput, (self.value,)


class ParsedOutput:
    """A partial output from another process."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _adapter_and_schema(kind: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        schema = adapter.json_schema(schema_generator=SchemaGenerator)
    except Exception as error:
        name = getattr(kind, "__name__", None) or f"an object of type {type(kind).__name__}"
        raise TypeError(
            f"output must be a type that pydantic can validate and JSON can represent; {name} is none"
        ) from error
    if (function := _called_function(adapter.core_schema)) is not None:
        name = getattr(function, "__name__", None) or f"an object of type {type(function).__name__}"
        raise TypeError(f"output must be a type, and {name} is a function: pass it in tools= to let the model call it")
    return adapter, close_objects(simplify_schema(schema))[0]


def _called_function(schema: Any) -> Any:
    """Return a function that validation would call with the model's arguments; None if there is none.

    pydantic accepts a function as a type, and calls it. It also calls the classes of named tuples.
    """
    unseen = [schema]
    while unseen:
        part = unseen.pop()
        if isinstance(part, dict):
            if part.get("type") == "call" and not isinstance(part["function"], type):
                return part["function"]
            unseen.extend(value for key, value in part.items() if key != "metadata")
        elif isinstance(part, list | tuple):
            unseen.extend(part)
    return None


def _takes_text(schema: Mapping[str, Any]) -> bool:
    """Return whether any text is a value of a type, as of `str` or a union that has it."""
    if schema.get("type") == "string":
        return schema.keys().isdisjoint(("enum", "const", "format", "pattern"))
    branches = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return any(map(_takes_text, branches))


def _has_object(text: str) -> bool:
    """Return whether an answer has an object or a code fence, or begins as JSON: then it is not plain words."""
    *_, longest = _find_jsons(text)
    return text.lstrip().startswith(("{", "[")) or "```" in text or longest.startswith("{")


def _find_jsons(text: str) -> Iterator[str]:
    """Yield the text itself, the texts in code fences, and the longest array or object in the text.

    If none of them is JSON, the last one that is yielded is the text itself.
    """
    start, longest = 0, ""
    for _ in range(_MAX_OPENINGS):
        opening = _OPENING.search(text, start)
        if opening is None:
            break
        try:
            _, end = _DECODER.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            start = opening.end()
        else:
            longest = max(longest, text[opening.start() : end], key=len)
            start = end
    yield from dict.fromkeys([text, *_FENCED.findall(text)])
    yield longest or text


def _find_partial_json(text: str) -> Any:
    """Return the first array or object in the text, with the members that have arrived; None if there is none."""
    opening = _OPENING.search(text)
    if opening is None:
        return None
    text = text[opening.start() :]
    try:
        return from_json(text, allow_partial="trailing-strings")
    except _UNREADABLE:
        pass
    try:
        return _DECODER.raw_decode(text)[0]  # words follow the array or object
    except (ValueError, RecursionError):
        return None
