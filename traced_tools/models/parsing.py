"""Parses provider JSON into pydantic models; errors name the wrong field and never quote its value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from traced_tools.core.messages import AssistantPart, Usage
from traced_tools.errors import InvalidResponse, ModelError
from traced_tools.models.base import ChatChunk, ToolCallDelta

D = TypeVar("D", str, bytes)
R = TypeVar("R")
W = TypeVar("W", bound="Body")
ChunkContent = tuple[str, str, tuple[AssistantPart, ...]]
"""The content of one chunk: a piece of text, a piece of reasoning, and whole parts."""
_NO_CONTENT: ChunkContent = ("", "", ())

MOST_ITEMS: Final = 10_000
"""The maximum number of JSON objects and arrays in a body or event, and of parts in the message decoded from it.

A decoded object or array can take hundreds of times the memory of its JSON text.
"""
_FieldPlaces = Mapping[str, Any]
_COUNT_ALL: Final[_FieldPlaces] = {}
_MESSAGE_ITEM: Final[_FieldPlaces] = {"content": {"logprobs": None}}
_UNCOUNTED: Final[_FieldPlaces] = {
    "tools": None,
    "logprobs": None,
    "prompt_logprobs": None,
    "choices": {"logprobs": None},
    "candidates": {"logprobsResult": None},
    "item": _MESSAGE_ITEM,
    "output": _MESSAGE_ITEM,
    "response": {"tools": None, "output": _MESSAGE_ITEM},
}
"""The places (None) of fields whose items don't count, because no codec reads them.

These fields hold the log probabilities of tokens, and the tool schemas that OpenAI repeats in its answer. In any other
place, a field of the same name counts, because it may be retained. So does everything in an item of the Responses API
that isn't a message.
"""

FAIL_FAST: Final[Any] = Field(fail_fast=True)
"""Stops validation at the first invalid element; otherwise pydantic builds one error for each element."""


class Wire(BaseModel):
    """A JSON object in a provider's answer. Declares the fields that this package reads and ignores all others."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class Body(Wire):
    """A whole body, or one event of a stream.

    A non-empty `error` means that there is no answer, regardless of the HTTP status and the other fields.
    """

    error: Any = None


class UnreadableValue(ValueError):
    """A value in an answer cannot be decoded; the message gives the reason and quotes nothing."""


def decode_answer(decode: Callable[[D], R], data: D, provider: str) -> R:
    """Return `decode(data)`; raises a `ModelError`, with `data` as its `body`, if `decode` fails."""
    try:
        return decode(data)
    except ModelError as error:
        error.body = data
        raise
    except ValidationError as error:
        problem = _describe(error)
    except UnreadableValue as error:
        problem = str(error)
    except (ValueError, RecursionError) as error:
        problem = type(error).__name__
    raise InvalidResponse(f"the answer cannot be understood: {problem}", provider=provider, body=data)


def parse_body(kind: type[W], body: str | bytes, what: str, provider: str, *, count_items: bool = True) -> W:
    """Parse `body` into a `kind`.

    Args:
        kind: the class to return an instance of.
        body: JSON text.
        what: the description of the body in error messages, such as "the answer".
        provider: the provider's name, for error messages.
        count_items: whether to refuse more than `MOST_ITEMS` objects and arrays; False for embedding vectors.

    Raises:
        InvalidResponse: if the JSON is invalid or a field is wrong. The message names the field and quotes nothing.
        ModelError: if the body is an error object; see `error_in_answer`.
    """
    if len(body) > MOST_ITEMS and count_items and _has_too_many_items(body):
        raise InvalidResponse(f"{what} has more than {MOST_ITEMS} items", provider=provider)
    try:
        parsed_body = kind.model_validate_json(body)
    except ValidationError as error:
        problem = _describe(error)
    else:
        if not parsed_body.error:
            return parsed_body
        # some servers send the error as a text, with its code beside it
        from traced_tools.models.refusals import error_in_answer  # its patterns take long to compile

        refusal = parsed_body.error if isinstance(parsed_body.error, Mapping) else from_json(body)
        raise error_in_answer(f"{what} is an error object", provider, refusal)
    raise InvalidResponse(f"{what} cannot be understood: {problem}", provider=provider)


class SurrogateRepair:
    r"""Rejoins surrogate pairs that a server split between two strings.

    JSON can write a character beyond U+FFFF as a pair of `\u` escapes (RFC 8259, section 7), and parsers reject half
    a pair. Servers written in JavaScript split pairs if they cut a text by its length. So a first half at the end of a
    string is held back until a second half starts a string in the next event.
    """

    def __init__(self) -> None:
        self._half = ""

    def repair(self, data: str) -> str:
        """Return JSON text without half pairs: halves are joined, and a half without its counterpart is removed."""
        if "\\" not in data or ("\\ud" not in data and "\\uD" not in data):  # the first check is by far the fastest
            return data
        surrogate, self._half = self._half, ""
        return _ESCAPE.sub(lambda escape: self._mend(escape, surrogate), data)

    def _mend(self, escape: re.Match[str], surrogate: str) -> str:
        match escape.lastgroup:
            case "first":
                self._half = escape[0]
                return ""
            case "second":
                return surrogate and surrogate + escape[0]
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
"""Escapes in JSON text: a pair, a first half at the end of a string, a second half at the start of one, any other."""


def repair_surrogates(body: bytes) -> bytes:
    """Return a whole JSON body without half surrogate pairs."""
    if b"\\u" not in body:
        return body
    return SurrogateRepair().repair(body.decode("latin-1")).encode("latin-1")  # latin-1 keeps all bytes


def build_chunks(
    contents: Sequence[ChunkContent],
    calls: tuple[ToolCallDelta, ...] = (),
    usage: Usage | None = None,
    finish_reason: str | None = None,
    id: str | None = None,
    model: str | None = None,
    provider_reason: str | None = None,
) -> list[ChatChunk]:
    """Return the chunks of one event: one for each content, of which the last also gets all other values."""
    *before, (text, reasoning, parts) = contents or (_NO_CONTENT,)
    chunks = [ChatChunk(text, reasoning, (), parts) for text, reasoning, parts in before]
    chunks.append(ChatChunk(text, reasoning, calls, parts, usage, finish_reason, id, model, False, provider_reason))
    return chunks


def unknown_reason(reason: str | None, finish_reason: str | None) -> str | None:
    """Return the provider's `reason` if its meaning is `error` or `other`, so that an error can name it."""
    return reason if finish_reason in ("error", "other") else None


def to_json(value: object) -> str:
    """Return a decoded JSON value as JSON text."""
    return json.dumps(value, ensure_ascii=False)


def to_sendable_json(value: object) -> str:
    """Return a decoded JSON value as JSON text to send back; raises `UnreadableValue` if JSON cannot express it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        pass
    raise UnreadableValue("an opaque part contains a number that is not finite or has too many digits")


def _has_too_many_items(body: str | bytes) -> bool:
    """Return whether `body` has more than `MOST_ITEMS` objects and arrays, apart from those in `_UNCOUNTED`."""
    text = body if isinstance(body, bytes) else body.encode("utf-8", "replace")
    if text.count(b"{") + text.count(b"[") <= MOST_ITEMS:  # cheap upper bound
        return False
    try:
        unseen: list[tuple[Any, _FieldPlaces]] = [(from_json(text), _UNCOUNTED)]
    except ValueError:
        return False  # invalid JSON is reported when the body is parsed
    items = 0
    while unseen:
        value, uncounted = unseen.pop()
        is_object = isinstance(value, dict)
        if uncounted is _MESSAGE_ITEM and is_object and value.get("type") != "message":
            uncounted = _COUNT_ALL
        for name, item in value.items() if is_object else zip(repeat(None), value, strict=False):
            if isinstance(item, dict | list):
                item_rules = uncounted if name is None else uncounted.get(name, _COUNT_ALL)
                if item_rules is not None:
                    items += 1
                    if items > MOST_ITEMS:
                        return True
                    unseen.append((item, item_rules))
    return False


def _describe(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = ".".join(str(place) for place in first["loc"])
    return f"{location}: {first['type']}" if location else str(first["type"])
