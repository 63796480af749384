"""Messages, their parts, and token usage.

All objects are immutable, compare by value, and convert to JSON and back (`model_dump_json`, `model_validate_json`; a
whole conversation with `dump_messages` and `load_messages`). A `repr` shows the structure but never content, because it
can end up in logs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, model_validator
from pydantic_core import CoreSchema, core_schema

from traced_tools.core.images import decode_data_url, detect_image_type

FinishReason = str
"""`stop`, `length`, `tool_call`, `content_filter` or `error`, as defined by the OpenTelemetry GenAI conventions.

`pause` and `other` are this package's own; see `ChatResponse`.
"""


F = TypeVar("F", bound=Callable[..., None])
V = TypeVar("V", bound="Value")


class Value(BaseModel):
    """The base class of all immutable values, such as messages, options and responses."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    if TYPE_CHECKING:  # the signature that subclasses with positional arguments call

        def __init__(self, **data: Any) -> None:
            """Set the fields by name."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; if there is an `update`, the copy is validated."""
        return self.replace(**update) if update else super().model_copy(deep=deep)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes`, validated like a new object; raises `TypeError` for an unknown field."""
        fields = {name: getattr(self, name) for name in self.model_fields_set}
        field_names = type(self).model_fields
        if not changes.keys() <= field_names.keys():
            unknown = ", ".join(changes.keys() - field_names.keys())
            raise TypeError(f"{type(self).__name__} has no {unknown} to replace; it has {', '.join(field_names)}")
        return type(self).model_validate({**fields, **changes})


@dataclass(frozen=True)
class _OneOf:
    """Annotates a union of models: `field` decides which one a value is. Errors don't quote an unknown value."""

    field: str
    accepted: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = {kind.model_fields[self.field].default: handler.generate_schema(kind) for kind in get_args(source)}

        def tag(value: Any) -> str | None:
            tag_value = value.get(self.field) if isinstance(value, dict) else getattr(value, self.field, None)
            return tag_value if tag_value in kinds else None

        # JSON is read and written without a call of Python for each value; objects of Python may be anything
        by_name, by_function = (
            core_schema.tagged_union_schema(
                kinds,
                discriminator,
                custom_error_type="unknown_kind",
                custom_error_message=f"Input should be {self.accepted}",
            )
            for discriminator in (self.field, tag)
        )
        return core_schema.json_or_python_schema(by_name, by_function)


_OMIT_NONE = Field(exclude_if=lambda value: value is None)
"""Omits None from JSON, because most parts have no signature."""

Signature = Annotated[str | None, Field(repr=False), _OMIT_NONE]
"""A provider's signature of a part: opaque text that only the provider can verify."""


def encodable(text: str) -> str:
    """Return `text` with `?` in place of lone surrogates, which UTF-8 can't encode (as in undecodable file names)."""
    if not isinstance(text, str) or text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()


class _Encodable:
    """Annotates a text that JSON can hold. A text from JSON is one, so that reading JSON calls no Python for it."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = handler(source)
        return core_schema.json_or_python_schema(text, core_schema.no_info_before_validator_function(encodable, text))


_Id = Annotated[str, _Encodable]
"""An id that JSON can hold."""

_Text = Annotated[str, _Encodable, Field(repr=False)]
"""A text that JSON can hold, which a `repr` doesn't show."""


def not_for_validation(init: F) -> F:
    """Mark an `__init__` that only takes positional arguments, so that reading JSON does not call it: that is slow."""
    init.__pydantic_base_init__ = True  # type: ignore[attr-defined]
    return init


class TextPart(Value):
    """Text. If the provider signed it, `signature` is sent back with the text."""

    type: Literal["text"] = "text"
    text: _Text
    signature: Signature = None

    @not_for_validation
    def __init__(self, text: str, **data: Any) -> None:
        super().__init__(text=text, **data)


class ImagePart(Value):
    """An image, as a URL or as bytes.

    Args:
        url: the URL of the image; a `data:` URL (RFC 2397) is decoded to bytes.
        data: the bytes of the image.
        media_type: the media type of the bytes; by default detected for PNG, JPEG, GIF and WebP, else `image/png`.
        signature: the provider's signature, if it generated and signed the image; sent back with the image.
    """

    type: Literal["image"] = "image"
    url: str | None = Field(default=None, repr=False)
    data: bytes | None = Field(default=None, repr=False)
    media_type: str = Field(default="image/png", pattern=r"^[\w.+-]+/[\w.+-]+$")
    signature: Signature = None

    @model_validator(mode="before")
    @classmethod
    def _decode_url_and_type(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        url, data = fields.get("url"), fields.get("data")
        if isinstance(url, str) and data is None and (decoded_url := decode_data_url(url)):
            return {**fields, "url": None, "media_type": decoded_url[0], "data": decoded_url[1]}
        if isinstance(data, bytes) and "media_type" not in fields:
            return {**fields, "media_type": detect_image_type(data) or "image/png"}
        return fields

    def model_post_init(self, context: Any) -> None:
        """Check that exactly one of `url` and `data` is set."""
        if (self.url is None) == (self.data is None):
            raise ValueError("an ImagePart needs exactly one of url and data")


class ReasoningPart(Value):
    """A model's reasoning before its answer.

    Args:
        text: the reasoning, or a summary of it; empty if the provider doesn't disclose it.
        signature: the provider's signature or the encrypted reasoning; sent back unchanged with the part.
        id: the provider's id of the reasoning, if it has one. Parts with the same id are pieces of one reasoning.
    """

    type: Literal["reasoning"] = "reasoning"
    text: _Text
    signature: Signature = None
    id: Annotated[str | None, _OMIT_NONE] = None

    @not_for_validation
    def __init__(self, text: str, **data: Any) -> None:
        super().__init__(text=text, **data)


class ProviderPart(Value):
    """An opaque part that only its provider can read, such as the record of a search it ran; sent back unchanged.

    Args:
        data: the part as JSON text.
    """

    type: Literal["provider"] = "provider"
    data: _Text

    @not_for_validation
    def __init__(self, data: str, **fields: Any) -> None:
        super().__init__(data=data, **fields)


class ToolCall(Value):
    """A model's request to run a tool.

    Args:
        name: the tool's name, as the model wrote it.
        arguments: JSON text as the model wrote it; a mapping is converted to JSON.
        id: the id that links the result to the call; None if the provider sends none (the loop then generates one).
        signature: the provider's signature of the call, if it set one; sent back with the call.
    """

    type: Literal["tool_call"] = "tool_call"
    name: _Text
    arguments: str = Field(default="{}", repr=False)
    id: _Id | None = None
    signature: Signature = None

    def __init__(
        self, name: str, arguments: str | Mapping[str, Any] = "{}", id: str | None = None, **data: Any
    ) -> None:
        if not isinstance(arguments, str | Mapping):
            raise TypeError(f"arguments must be JSON text or a mapping, not {type(arguments).__name__}")
        text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
        super().__init__(name=name, arguments=encodable(text), id=id, **data)


class ToolResultPart(Value):
    """A tool's result as the model sees it: a text, and optionally images."""

    type: Literal["tool_result"] = "tool_result"
    call_id: _Id
    name: _Text
    content: str = Field(repr=False)
    images: tuple[ImagePart, ...] = Field(default=(), repr=False)
    is_error: bool = False


UserPart = Annotated[TextPart | ImagePart, _OneOf("type", "a TextPart or an ImagePart")]
AssistantPart = Annotated[
    TextPart | ReasoningPart | ToolCall | ImagePart | ProviderPart,
    _OneOf("type", "a TextPart, a ReasoningPart, a ToolCall, an ImagePart or a ProviderPart"),
]


class SystemMessage(Value):
    """Instructions for the whole conversation.

    Args:
        text: the instructions.
    """

    role: Literal["system"] = "system"
    text: _Text

    @not_for_validation
    def __init__(self, text: str, **data: Any) -> None:
        super().__init__(text=text, **data)


class UserMessage(Value):
    """A message of the user.

    Args:
        content: a text, or a sequence of text and image parts.
    """

    role: Literal["user"] = "user"
    parts: tuple[UserPart, ...] = Field(default=(), repr=False)

    @not_for_validation
    def __init__(self, content: str | Sequence[TextPart | ImagePart] = (), **data: Any) -> None:
        super().__init__(**{"parts": _to_parts(content), **data})

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return _join_text(self.parts)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes`: fields, or `content` as for a new message."""
        return super().replace(**_content_as_parts(self, changes, ("content",)))


class AssistantMessage(Value):
    """An answer of the model.

    Args:
        content: a text, or a sequence of parts in the order the model sent them, which providers require back.
        reasoning: reasoning to put before the content.
        tool_calls: calls to put after the content.
        provider: the provider that signed parts of the message, as in `gen_ai.provider.name`; signed parts aren't sent
            to another provider. None if nothing is signed.
    """

    role: Literal["assistant"] = "assistant"
    parts: tuple[AssistantPart, ...] = Field(default=(), repr=False)
    provider: Annotated[str | None, _OMIT_NONE] = None

    @not_for_validation
    def __init__(
        self,
        content: str | Sequence[AssistantPart] = (),
        *,
        reasoning: str = "",
        tool_calls: Iterable[ToolCall] = (),
        **data: Any,
    ) -> None:
        if "parts" not in data:
            thoughts = (ReasoningPart(reasoning),) if reasoning else ()
            data["parts"] = (*thoughts, *_to_parts(content), *tool_calls)
        super().__init__(**data)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return _join_text(self.parts)

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningPart))

    @cached_property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes`: fields, or `reasoning`, `content` and `tool_calls` as for a new message.

        Parts of a kind that isn't passed stay. `content` replaces texts, images and opaque parts.
        """
        return super().replace(**_content_as_parts(self, changes, ("reasoning", "content", "tool_calls")))


class ToolMessage(Value):
    """The results of one batch of tool calls.

    Args:
        results: one part for each call of the answer before, in call order.
    """

    role: Literal["tool"] = "tool"
    results: tuple[ToolResultPart, ...]

    @not_for_validation
    def __init__(self, results: Sequence[ToolResultPart], **data: Any) -> None:
        super().__init__(results=tuple(results), **data)

    @property
    def text(self) -> str:
        """The texts of the results, one after the other in lines of their own."""
        return "\n".join(result.content for result in self.results)


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage
MESSAGE_TYPES = (SystemMessage, UserMessage, AssistantMessage, ToolMessage)
ANY_MESSAGE = "a SystemMessage, UserMessage, AssistantMessage or ToolMessage"

_CONVERSATION: TypeAdapter[tuple[Message, ...]] = TypeAdapter(
    tuple[
        Annotated[Message, _OneOf("role", "a message: its role is system, user, assistant or tool")],
        ...,
    ],
    config=ConfigDict(hide_input_in_errors=True, ser_json_bytes="base64", val_json_bytes="base64"),
)


def dump_messages(messages: Iterable[Message]) -> str:
    """Return a conversation as JSON text, which `load_messages` reads."""
    return _CONVERSATION.dump_json(tuple(messages)).decode()


def load_messages(text: str | bytes) -> tuple[Message, ...]:
    """Read a conversation written by `dump_messages`; a pydantic `ValidationError` does not quote the input."""
    return _CONVERSATION.validate_json(text)


class Usage(Value):
    """Token counts of one model call, or the sums of a run; None if the provider doesn't report a count.

    As in the OpenTelemetry GenAI conventions, `input_tokens` include cached tokens (`cache_read_tokens`,
    `cache_write_tokens`), and `output_tokens` include `reasoning_tokens`.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int | None:
        """The sum of input and output tokens; None if both are unknown."""
        return sum_known(self.input_tokens, self.output_tokens)

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return _add_usages([self, other])


class UsageSum:
    """Adds up the usage of model calls; the sum is computed when it is read."""

    __slots__ = ("_total_and_pending",)

    def __init__(self) -> None:
        self._total_and_pending: tuple[Usage | None, list[Usage]] = (
            None,
            [],
        )  # one tuple: threads see a consistent state

    def add(self, usage: Usage | None) -> None:
        """Count the usage of a model call, if it reported one."""
        if usage is not None:
            self._total_and_pending[1].append(usage)

    @property
    def total(self) -> Usage | None:
        """The sum so far; None if no call has reported usage."""
        total, pending = self._total_and_pending
        if pending:
            usages = pending if total is None else [total, *pending]
            total = usages[0] if len(usages) == 1 else _add_usages(usages)
            self._total_and_pending = total, []
        return total

    def peek(self) -> Usage | None:
        """Return the sum so far without storing it; safe in a thread other than the one that adds."""
        total, pending = self._total_and_pending
        usages = [*pending] if total is None else [total, *pending]
        if len(usages) < 2:  # fast path: a run reads the sums of all its nested runs, which mostly have one call
            return usages[0] if usages else None
        return _add_usages(usages)


_set_fields, _set_names, _set_extra, _set_private = (
    vars(BaseModel)[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


def make_unvalidated(kind: type[V], fields: dict[str, Any]) -> V:
    """Return an object of valid `fields`: all of them, in order.

    The loop creates two such objects per tool call, and a memory three per message. pydantic's `model_construct` takes
    longer than validation.
    """
    instance = object.__new__(kind)
    _set_fields(instance, fields)
    _set_names(instance, set(fields))
    _set_extra(instance, None)
    _set_private(instance, None)
    return instance


def tool_message_of(results: Iterable[ToolResultPart]) -> ToolMessage:
    """Return the message of results that are known to be valid."""
    return make_unvalidated(ToolMessage, {"role": "tool", "results": tuple(results)})


def result_part_of_text(call_id: str, name: str, content: str, *, is_error: bool) -> ToolResultPart:
    """Return a result without images, of arguments that are known to be valid."""
    return make_unvalidated(
        ToolResultPart,
        {
            "type": "tool_result",
            "call_id": call_id,
            "name": name,
            "content": content,
            "images": (),
            "is_error": is_error,
        },
    )


def encodable_json(value: Any) -> Any:
    """Return a JSON value whose texts UTF-8 can encode."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(key): encodable_json(item) for key, item in value.items()}
    return [encodable_json(item) for item in value] if isinstance(value, list) else value


def _to_parts(content: Any) -> tuple[Any, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    return tuple(content)


def _content_as_parts(
    message: UserMessage | AssistantMessage, changes: Mapping[str, Any], kinds: Sequence[str]
) -> Mapping[str, Any]:
    """Return `changes` with the parts that arguments of a new message stand for, at the places of those before."""
    if changes.keys().isdisjoint(kinds):
        return changes
    if "parts" in changes:
        raise TypeError(f"parts cannot be combined with {' or '.join(kinds)}")
    parts_of_kinds = {kind: tuple(_parts_of_kind(kind, changes[kind])) for kind in kinds if kind in changes}
    parts: list[Any] = []
    for kind, part in _parts_by_kind(message.parts, parts_of_kinds, kinds):
        if kind in changes:  # all parts of the kind are where the first one was
            parts += parts_of_kinds.pop(kind, ())
        else:
            parts.append(part)
    return {**{name: value for name, value in changes.items() if name not in kinds}, "parts": tuple(parts)}


def _parts_by_kind(parts: Iterable[object], new: Iterable[str], kinds: Sequence[str]) -> list[tuple[str, Any]]:
    """Return parts with their kinds; of a new kind without parts, its place among the others, in the order of kinds."""
    placed: list[tuple[str, Any]] = [(_part_kind(part), part) for part in parts]
    place = {kind: kinds.index(kind) for kind in kinds}
    for kind in new:
        if kind not in [present for present, _ in placed]:
            later = next((at for at, (present, _) in enumerate(placed) if place[present] > place[kind]), len(placed))
            placed.insert(later, (kind, None))
    return placed


def _part_kind(part: object) -> str:
    return "tool_calls" if isinstance(part, ToolCall) else "reasoning" if isinstance(part, ReasoningPart) else "content"


def _parts_of_kind(kind: str, value: Any) -> Iterable[Any]:
    if kind == "reasoning":
        return (ReasoningPart(value),) if value else ()
    return _to_parts(value) if kind == "content" else value


def _join_text(parts: Iterable[object]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def sum_known(*counts: int | None) -> int | None:
    """Return the sum of the counts that aren't None, None if all are."""
    numbers = [count for count in counts if count is not None]
    return sum(numbers) if numbers else None


def _add_usages(usages: Sequence[Usage]) -> Usage:
    return Usage(**{name: sum_known(*[getattr(usage, name) for usage in usages]) for name in _COUNTS})


_COUNTS = tuple(Usage.model_fields)
