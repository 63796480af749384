"""Reading what a provider sent: bodies as pydantic models, and errors that say where it is wrong and quote nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from traced_tools.core.messages import AssistantPart, Usage
from traced_tools.errors import InvalidResponse
from traced_tools.models.base import ChatChunk, ToolCallDelta

D = TypeVar("D", str, bytes)
R = TypeVar("R")
W = TypeVar("W", bound="Body")
Said = tuple[str, str, tuple[AssistantPart, ...]]
"""What is said at once: a piece of text, a piece of reasoning, and parts that are whole."""
_NOTHING: Said = ("", "", ())

MOST_ITEMS: Final = 10_000
"""The most items of a body or an event, and the most parts of the message it becomes.

An item is a JSON object or array. A decoded item can take hundreds of times the memory of its JSON text.
"""
_Places = Mapping[str, Any]
_ALL_COUNT: Final[_Places] = {}
_MESSAGE: Final[_Places] = {"content": {"logprobs": None}}
_UNCOUNTED: Final[_Places] = {
    "tools": None,
    "logprobs": None,
    "prompt_logprobs": None,
    "choices": {"logprobs": None},
    "candidates": {"logprobsResult": None},
    "item": _MESSAGE,
    "output": _MESSAGE,
    "response": {"tools": None, "output": _MESSAGE},
}
"""The places (None) of fields that no codec reads: values for each token, and schemas of tools, which OpenAI repeats.

A field of the same name anywhere else may be kept, so it counts. An item of the Responses API other than a message is
kept whole.
"""

FAIL_FAST: Final[Any] = Field(fail_fast=True)
"""Stops at the first element that is wrong: otherwise, an array of wrong elements becomes as many errors."""


class Wire(BaseModel):
    """A part of a body, as far as we read it; everything else in it is ignored."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class Body(Wire):
    """A whole body, or an event of a stream.

    A non-empty `error` means that there is no answer, whatever the HTTP status and the other fields say.
    """

    error: Any = None


class Unreadable(ValueError):
    """What a provider sent cannot be read; the text gives the reason and quotes nothing."""


def understood(decode: Callable[[D], R], data: D, provider: str) -> R:
    """Return what `decode` returns for `data`; raises `InvalidResponse` if a message type rejects a value in it.

    The `body` of an error is `data`.
    """
    try:
        return decode(data)
    except InvalidResponse as error:
        error.body = data
        raise
    except ValidationError as error:
        problem = _problem(error)
    except Unreadable as error:
        problem = str(error)
    except (ValueError, RecursionError) as error:
        problem = type(error).__name__
    raise InvalidResponse(f"the answer cannot be understood: {problem}", provider=provider, body=data)


def read(kind: type[W], body: str | bytes, what: str, provider: str, *, count_items: bool = True) -> W:
    """Return `body` as `kind`.

    Args:
        kind: what to return.
        body: JSON text.
        what: names the body in errors.
        provider: for errors.
        count_items: refuse more than `MOST_ITEMS` items; False for vectors.

    Raises:
        InvalidResponse: says what is wrong and where, and quotes nothing.
    """
    if len(body) > MOST_ITEMS and count_items and _has_too_many_items(body):
        raise InvalidResponse(f"{what} has more than {MOST_ITEMS} items", provider=provider)
    try:
        found = kind.model_validate_json(body)
    except ValidationError as error:
        problem = _problem(error)
    else:
        if not found.error:
            return found
        raise InvalidResponse(f"{what} is an error object", provider=provider, code=code_of(found.error))
    raise InvalidResponse(f"{what} cannot be understood: {problem}", provider=provider)


class Characters:
    """Mends characters that were cut in half, as servers in JavaScript do that cut a text by its length.

    JSON may write a character beyond U+FFFF as two escapes (RFC 8259, 7), and no parser takes one without the other. So
    a half at the end of a text waits for one at the beginning of another, in the next event.
    """

    def __init__(self) -> None:
        self._half = ""

    def whole(self, data: str) -> str:
        """Return JSON text without half characters: they are joined, or left out where the other half is not there."""
        if "\\" not in data or ("\\ud" not in data and "\\uD" not in data):  # the first is by far the fastest to see
            return data
        half, self._half = self._half, ""
        return _ESCAPE.sub(lambda escape: self._mended(escape, half), data)

    def _mended(self, escape: re.Match[str], half: str) -> str:
        match escape.lastgroup:
            case "first":
                self._half = escape[0]
                return ""
            case "second":
                return half and half + escape[0]
            case "lone":
                return ""
        return escape[0]


_ESCAPE = re.compile(
    r"""\\u[dD][89abAB]..\\u[dD][c-fC-F]..
    | (?P<first>\\u[dD][89abAB]..)(?=")
    | (?<=")(?P<second>\\u[dD][c-fC-F]..)
    | (?P<lone>\\u[dD][89a-fA-F]..)
    | \\.""",
    re.VERBOSE | re.DOTALL,
)
"""Escapes in JSON text: both halves of a character, one at the end of a string, one at its beginning, any other."""


def whole_characters(body: bytes) -> bytes:
    """Return a whole body in JSON without half characters."""
    if b"\\u" not in body:
        return body
    return Characters().whole(body.decode("latin-1")).encode("latin-1")  # whatever it holds: escapes are ASCII


def code_of(error: object) -> object:
    """Return the short code of an error object, whichever provider's: `status` (Google), `code` or `type`.

    A name counts before a number: many servers repeat the HTTP status as the code.
    """
    if not isinstance(error, Mapping):
        return None
    codes = [code for code in map(error.get, ("status", "code", "type", "error_type")) if code]
    return next((code for code in codes if not str(code).isdigit()), codes[0] if codes else None)


def as_chunks(
    said: Sequence[Said],
    calls: tuple[ToolCallDelta, ...] = (),
    usage: Usage | None = None,
    finish_reason: str | None = None,
    id: str | None = None,
    model: str | None = None,
) -> list[ChatChunk]:
    """Return the chunks of an event, one for each thing it says; the last holds whatever else it tells."""
    *before, (text, reasoning, parts) = said or (_NOTHING,)
    chunks = [ChatChunk(text, reasoning, (), parts) for text, reasoning, parts in before]
    chunks.append(ChatChunk(text, reasoning, calls, parts, usage, finish_reason, id, model))
    return chunks


def written(value: object) -> str:
    """Return a decoded JSON value as JSON text."""
    return json.dumps(value, ensure_ascii=False)


def as_it_came(value: object) -> str:
    """Return a decoded JSON value as JSON text that can be sent back; raises `Unreadable` for a value that cannot."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        pass
    raise Unreadable("a part that goes back unread has a number that is not finite or too long")


def _has_too_many_items(body: str | bytes) -> bool:
    """Return whether `body` has more than `MOST_ITEMS` items."""
    text = body if isinstance(body, bytes) else body.encode("utf-8", "replace")
    if text.count(b"{") + text.count(b"[") <= MOST_ITEMS:  # there cannot be as many
        return False
    try:
        unseen: list[tuple[Any, _Places]] = [(from_json(text), _UNCOUNTED)]
    except ValueError:
        return False  # what is wrong is found when the body is read
    items = 0
    while unseen:
        value, uncounted = unseen.pop()
        is_object = isinstance(value, dict)
        if uncounted is _MESSAGE and is_object and value.get("type") != "message":
            uncounted = _ALL_COUNT
        for name, each in value.items() if is_object else zip(repeat(None), value, strict=False):
            if isinstance(each, dict | list):
                inside = uncounted if name is None else uncounted.get(name, _ALL_COUNT)
                if inside is not None:
                    items += 1
                    if items > MOST_ITEMS:
                        return True
                    unseen.append((each, inside))
    return False


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(place) for place in first["loc"])
    return f"{where}: {first['type']}" if where else str(first["type"])
