"""What is said: messages, their parts, and the usage a provider reports.

All of it is immutable, compares by value, and goes to JSON and back (`model_dump_json`, `model_validate_json`; a whole
conversation with `dump_messages` and `load_messages`). A `repr` shows shape, never content: it ends up in logs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, model_validator

from traced_tools.core.images import decode_data_url, detect_image_type

FinishReason = str
"""`stop`, `length`, `tool_call`, `content_filter` or `error`: the list of the OpenTelemetry GenAI conventions."""


class Value(BaseModel):
    """An immutable value that crosses a boundary."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    if TYPE_CHECKING:  # what subclasses with positional arguments call; pydantic's own takes any keyword

        def __init__(self, **data: Any) -> None:
            """Take the fields by name."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; with an `update`, a validated one."""
        return self.replace(**update) if update else super().model_copy(deep=deep)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes`, validated like a new one."""
        fields = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).model_validate({**fields, **changes})


def _told_apart(field: str, *tags: str, accepted: str) -> Discriminator:
    """Return what tells kinds apart by `field`. A tag that is not known counts as none, so that no error quotes it."""

    def tag(value: Any) -> str | None:
        found = value.get(field) if isinstance(value, dict) else getattr(value, field, None)
        return found if found in tags else None

    return Discriminator(tag, custom_error_type="unknown_kind", custom_error_message=f"Input should be {accepted}")


_LEFT_OUT = Field(exclude_if=lambda value: value is None)
"""Leaves what is None out of JSON: most parts are sealed by nobody."""

Signature = Annotated[str | None, Field(repr=False), _LEFT_OUT]
"""A provider's seal on a part, in its own words."""


class TextPart(Value):
    """Text; `signature` is the provider's seal on it, if it set one, and goes back with it."""

    type: Literal["text"] = "text"
    text: str = Field(repr=False)
    signature: Signature = None

    def __init__(self, text: str, **data: Any) -> None:
        super().__init__(text=encodable(text), **data)


class ImagePart(Value):
    """An image, by address or as bytes.

    Args:
        url: its address; one that holds the bytes (`data:`, RFC 2397) is taken apart.
        data: its bytes.
        media_type: what they are; by default JPEG, GIF or WebP if they begin like one, else `image/png`.
        signature: the provider's seal on an image of its own, if it set one; goes back with it.
    """

    type: Literal["image"] = "image"
    url: str | None = Field(default=None, repr=False)
    data: bytes | None = Field(default=None, repr=False)
    media_type: str = Field(default="image/png", pattern=r"^[\w.+-]+/[\w.+-]+$")
    signature: Signature = None

    @model_validator(mode="before")
    @classmethod
    def _taken_apart(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        url, data = fields.get("url"), fields.get("data")
        if isinstance(url, str) and data is None and (found := decode_data_url(url)):
            return {**fields, "url": None, "media_type": found[0], "data": found[1]}
        if isinstance(data, bytes) and "media_type" not in fields:
            return {**fields, "media_type": detect_image_type(data) or "image/png"}
        return fields

    def model_post_init(self, context: Any) -> None:
        """Check that there is one image."""
        if (self.url is None) == (self.data is None):
            raise ValueError("an ImagePart needs exactly one of url and data")


class ReasoningPart(Value):
    """What a model thought before it answered.

    Args:
        text: the thoughts, or a summary of them; empty where the provider keeps them to itself.
        signature: the provider's seal, or the thoughts encrypted; goes back with the part, unread.
        id: the provider's name for the part, where it has one. Parts that share it are pieces of one thought.
    """

    type: Literal["reasoning"] = "reasoning"
    text: str = Field(repr=False)
    signature: Signature = None
    id: Annotated[str | None, _LEFT_OUT] = None

    def __init__(self, text: str, **data: Any) -> None:
        super().__init__(text=encodable(text), **data)


class ProviderPart(Value):
    """A part that only its provider understands, such as the record of a search it ran; goes back as it came.

    Args:
        data: the part as JSON text.
    """

    type: Literal["provider"] = "provider"
    data: str = Field(repr=False)

    def __init__(self, data: str, **fields: Any) -> None:
        super().__init__(data=encodable(data), **fields)


class ToolCall(Value):
    """A model's request to run a tool.

    Args:
        name: the tool's name, as the model wrote it.
        arguments: JSON text as the model wrote it; a mapping is written as JSON for you.
        id: what ties the result to the call; None where a provider gives none (the loop then makes one).
        signature: the provider's seal on the call, if it set one; goes back with it.
    """

    type: Literal["tool_call"] = "tool_call"
    name: str = Field(repr=False)
    arguments: str = Field(default="{}", repr=False)
    id: str | None = None
    signature: Signature = None

    def __init__(
        self, name: str, arguments: str | Mapping[str, Any] = "{}", id: str | None = None, **data: Any
    ) -> None:
        if not isinstance(arguments, str | Mapping):
            raise TypeError(f"arguments must be JSON text or a mapping, not {type(arguments).__name__}")
        text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
        super().__init__(name=name, arguments=encodable(text), id=id, **data)


class ToolResultPart(Value):
    """What a tool answered, as the model reads it: a text, and images beside it."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    name: str = Field(repr=False)
    content: str = Field(repr=False)
    images: tuple[ImagePart, ...] = Field(default=(), repr=False)
    is_error: bool = False


UserPart = Annotated[
    Annotated[TextPart, Tag("text")] | Annotated[ImagePart, Tag("image")],
    _told_apart("type", "text", "image", accepted="a TextPart or an ImagePart"),
]
AssistantPart = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[ReasoningPart, Tag("reasoning")]
    | Annotated[ToolCall, Tag("tool_call")]
    | Annotated[ImagePart, Tag("image")]
    | Annotated[ProviderPart, Tag("provider")],
    _told_apart(
        "type",
        "text",
        "reasoning",
        "tool_call",
        "image",
        "provider",
        accepted="a TextPart, a ReasoningPart, a ToolCall, an ImagePart or a ProviderPart",
    ),
]


class SystemMessage(Value):
    """Instructions that stand above the conversation."""

    role: Literal["system"] = "system"
    text: str = Field(repr=False)

    def __init__(self, text: str, **data: Any) -> None:
        super().__init__(text=encodable(text), **data)


class UserMessage(Value):
    """What the user said: a text, or a sequence of text and image parts."""

    role: Literal["user"] = "user"
    parts: tuple[UserPart, ...] = Field(repr=False)

    def __init__(self, content: str | Sequence[TextPart | ImagePart] = (), **data: Any) -> None:
        super().__init__(**{"parts": _parts(content), **data})

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return _text(self.parts)


class AssistantMessage(Value):
    """What the model answered.

    Args:
        content: a text, or a sequence of parts in the order the model sent them (which providers want back intact).
        reasoning: thinking to put before the content.
        tool_calls: calls to put after the content.
        provider: who sealed parts of it, as in `gen_ai.provider.name`; to another provider they are not sent. None when
            nothing is sealed.
    """

    role: Literal["assistant"] = "assistant"
    parts: tuple[AssistantPart, ...] = Field(repr=False)
    provider: Annotated[str | None, _LEFT_OUT] = None

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
            data["parts"] = (*thoughts, *_parts(content), *tool_calls)
        super().__init__(**data)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return _text(self.parts)

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningPart))

    @cached_property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls the model asked for, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


class ToolMessage(Value):
    """The results of one batch of tool calls, in call order."""

    role: Literal["tool"] = "tool"
    results: tuple[ToolResultPart, ...]

    def __init__(self, results: Sequence[ToolResultPart], **data: Any) -> None:
        super().__init__(results=tuple(results), **data)


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage
MESSAGE_TYPES = (SystemMessage, UserMessage, AssistantMessage, ToolMessage)
ANY_MESSAGE = "a SystemMessage, UserMessage, AssistantMessage or ToolMessage"

_CONVERSATION: TypeAdapter[tuple[Message, ...]] = TypeAdapter(
    tuple[
        Annotated[
            Annotated[SystemMessage, Tag("system")]
            | Annotated[UserMessage, Tag("user")]
            | Annotated[AssistantMessage, Tag("assistant")]
            | Annotated[ToolMessage, Tag("tool")],
            _told_apart(
                "role",
                "system",
                "user",
                "assistant",
                "tool",
                accepted="a message: its role is system, user, assistant or tool",
            ),
        ],
        ...,
    ],
    config=ConfigDict(hide_input_in_errors=True, ser_json_bytes="base64", val_json_bytes="base64"),
)


def dump_messages(messages: Iterable[Message]) -> str:
    """Write a conversation as JSON text; `load_messages` reads it back."""
    return _CONVERSATION.dump_json(tuple(messages)).decode()


def load_messages(text: str | bytes) -> tuple[Message, ...]:
    """Read a conversation written by `dump_messages`; raises pydantic's `ValidationError` without quoting the input."""
    return _CONVERSATION.validate_json(text)


class Usage(Value):
    """Tokens of one model call or, summed, of a run; None where the provider does not say.

    `input_tokens` include cached ones (`cache_read_tokens`, `cache_write_tokens`), `output_tokens` include
    `reasoning_tokens`, as the OpenTelemetry GenAI conventions count.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int | None:
        """Input and output together."""
        return sum_known(self.input_tokens, self.output_tokens)

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return _sum_of([self, other])


class UsageSum:
    """Adds up the usage of model calls; the sum is made when somebody asks for it."""

    __slots__ = ("_counted",)

    def __init__(self) -> None:
        self._counted: tuple[Usage | None, list[Usage]] = None, []  # one object, which another thread reads as a whole

    def add(self, usage: Usage | None) -> None:
        """Count the usage of a model call, if it reported one."""
        if usage is not None:
            self._counted[1].append(usage)

    @property
    def total(self) -> Usage | None:
        """The sum so far; None while no call has reported any."""
        total, added = self._counted
        if added:
            total = _sum_of(added if total is None else [total, *added])
            self._counted = total, []
        return total

    def peek(self) -> Usage | None:
        """Return the sum so far and keep nothing, for a thread that is not the one that adds."""
        total, added = self._counted
        counted = [*added] if total is None else [total, *added]
        if len(counted) < 2:  # as of each of the many runs that may be nested in one, whose pass asks for all of them
            return counted[0] if counted else None
        return _sum_of(counted)


def encodable(text: str) -> str:
    """Return `text` with `?` for what UTF-8 cannot hold: lone surrogates, as in names of undecodable files."""
    if not isinstance(text, str) or text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()


def _parts(content: Any) -> tuple[Any, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    return tuple(content)


def _text(parts: Iterable[object]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def sum_known(*counts: int | None) -> int | None:
    """Add what is known; None when nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _sum_of(usages: Sequence[Usage]) -> Usage:
    return Usage(**{name: sum_known(*[getattr(usage, name) for usage in usages]) for name in Usage.model_fields})
