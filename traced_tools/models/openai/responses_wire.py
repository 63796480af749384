"""The fields of the Responses API that this package reads.

An answer is a list of items. Each item converts itself to parts of a message: to all of them, or, if its text has been
streamed, to the remaining ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Base64Bytes, Discriminator, Tag, model_validator

from traced_tools.core.messages import AssistantPart, ImagePart, ProviderPart, ReasoningPart, TextPart, ToolCall, Usage
from traced_tools.models.base import ToolCallDelta
from traced_tools.models.openai.common import CUSTOM, input_to_arguments
from traced_tools.models.parsing import FAIL_FAST, Body, Wire, to_json, to_sendable_json


class ResponsesItem(Wire):
    """An item of an answer. Without a subclass for its type, only the server can read it."""

    raw: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _with_raw(cls, value: Any) -> Any:
        return {**value, "raw": value} if isinstance(value, dict) else value

    def raw_fields(self, *names: str) -> dict[str, Any]:
        """Return the named fields of the item that aren't empty."""
        return {name: self.raw[name] for name in names if self.raw.get(name)}

    def parts(self) -> Iterator[AssistantPart]:
        """Yield the parts for the whole item."""
        yield ProviderPart(to_sendable_json(self.raw))

    def remaining_parts(self) -> Iterator[AssistantPart]:
        """Yield the parts that remain after the item's text has been streamed."""
        yield from self.parts()


class ResponsesPiece(Wire):
    """A piece of an item's content: a text, or the text of a refusal."""

    text: str | None = None
    refusal: str | None = None

    @property
    def text_or_refusal(self) -> str:
        """The text of the answer or of the refusal."""
        return self.text or self.refusal or ""


class ResponsesMessage(ResponsesItem):
    """A message. An opaque part with its other fields follows its text; in a stream, they arrive after the text."""

    content: Annotated[tuple[ResponsesPiece, ...], FAIL_FAST] | None = None

    def parts(self) -> Iterator[AssistantPart]:
        """Yield the text and the opaque part, nothing if there is no text."""
        if text := "".join(piece.text_or_refusal for piece in self.content or ()):
            yield TextPart(text)
            yield from self.remaining_parts()

    def remaining_parts(self) -> Iterator[AssistantPart]:
        """Yield the opaque part with the message's other fields."""
        if fields := self.raw_fields("id", "phase"):
            yield ProviderPart(to_sendable_json({"type": "message", **fields}))


class ResponsesFunctionCall(ResponsesItem):
    """A tool call. Some servers send arguments as an object."""

    call_id: str | None = None
    name: str = ""
    arguments: str | dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return to_json(self.arguments) if isinstance(self.arguments, dict) else self.arguments or "{}"

    @property
    def signature(self) -> str | None:
        """The fields to send back with the call, as JSON text; None if there are none."""
        fields = self.raw_fields("id", "namespace")
        return to_sendable_json(fields) if fields else None

    def delta(self, index: int | None, arguments: str = "") -> ToolCallDelta:
        """Return a delta of this call, which is the item at `index`."""
        return ToolCallDelta(index, self.call_id, self.name, arguments, self.signature)

    def parts(self) -> Iterator[AssistantPart]:
        """Yield the call."""
        yield ToolCall(self.name, self.text, self.call_id, signature=self.signature)

    def remaining_parts(self) -> Iterator[AssistantPart]:
        """Yield nothing: id, name and signature were in the delta at the beginning of the call."""
        return iter(())


class ResponsesCustomCall(ResponsesFunctionCall):
    """A call of a custom tool, whose input is free text instead of JSON."""

    input: str | None = None
    status: str | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether the input ends before the model finished it."""
        return self.status == "incomplete"

    @property
    def text(self) -> str:
        """The arguments as JSON text: an object with the input in its field `input`."""
        return input_to_arguments(self.input or "", is_cut_off=self.is_cut_off)

    @property
    def signature(self) -> str:
        """The fields to send back with the call, as JSON text."""
        return to_sendable_json({**CUSTOM, **self.raw_fields("id", "namespace")})


class Reasoning(ResponsesItem):
    """Reasoning: as summaries, encrypted, or in plain text in `content` (DeepSeek, vLLM).

    An item with plain text is sent back whole, so an opaque part with the item follows the text. Other items are
    rebuilt from their parts.
    """

    id: str | None = None
    summary: Annotated[tuple[ResponsesPiece, ...], FAIL_FAST] | None = None
    content: Annotated[tuple[ResponsesPiece, ...], FAIL_FAST] | None = None
    encrypted_content: str | None = None

    def parts(self) -> Iterator[AssistantPart]:
        """Yield a part for each summary, the last one with the encrypted reasoning; or the plain text and the item."""
        if self.content:
            yield from [ReasoningPart(piece.text_or_refusal) for piece in (*(self.summary or ()), *self.content)]
            yield from super().parts()
            return
        *first, last = [piece.text_or_refusal for piece in self.summary or ()] or [""]
        yield from [ReasoningPart(text, id=self.id) for text in first]
        yield self._last_part(last)

    def remaining_parts(self) -> Iterator[AssistantPart]:
        """Yield the part that ends the streamed reasoning, or the item if the reasoning is plain text."""
        if self.content:
            yield from super().parts()
        else:
            yield self._last_part("")

    def _last_part(self, text: str) -> ReasoningPart:
        return ReasoningPart(text, id=self.id, signature=self.encrypted_content or None)


class GeneratedImage(ResponsesItem):
    """An image that the server generated."""

    result: Base64Bytes | None = None
    output_format: str | None = None

    def parts(self) -> Iterator[AssistantPart]:
        """Yield the image, and an opaque part with the item to send back."""
        if self.result:
            kind = "png" if self.output_format is None else self.output_format
            yield ImagePart(data=self.result, media_type=f"image/{kind}")
        yield from super().parts()


_ITEM_KINDS = ("message", "function_call", "custom_tool_call", "reasoning", "image_generation_call")


def _item_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else None
    return kind if kind in _ITEM_KINDS else "other"


AnyItem = Annotated[
    Annotated[ResponsesMessage, Tag("message")]
    | Annotated[ResponsesFunctionCall, Tag("function_call")]
    | Annotated[ResponsesCustomCall, Tag("custom_tool_call")]
    | Annotated[Reasoning, Tag("reasoning")]
    | Annotated[GeneratedImage, Tag("image_generation_call")]
    | Annotated[ResponsesItem, Tag("other")],
    Discriminator(_item_kind),
]


class ResponsesTokenDetails(Wire):
    """The parts of the tokens that were read from a cache or spent on reasoning."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ResponsesUsage(Wire):
    """Token counts."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: ResponsesTokenDetails | None = None
    output_tokens_details: ResponsesTokenDetails | None = None

    def to_usage(self) -> Usage:
        """Convert to `Usage`."""
        input_details, output_details = self.input_tokens_details, self.output_tokens_details
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cache_read_tokens=None if input_details is None else input_details.cached_tokens,
            reasoning_tokens=None if output_details is None else output_details.reasoning_tokens,
        )


class IncompleteDetails(Wire):
    """The reason why an answer ended early."""

    reason: str | None = None


class ResponsesAnswer(Body):
    """An answer, complete or as far as the stream has progressed."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    incomplete_details: IncompleteDetails | None = None
    output: Annotated[tuple[AnyItem, ...], FAIL_FAST] | None = None
    usage: ResponsesUsage | None = None

    @property
    def end_reason(self) -> str | None:
        """The reason why the answer ended early; None if the server gives none."""
        return self.incomplete_details.reason if self.incomplete_details else None

    def parts(self) -> tuple[AssistantPart, ...]:
        """Return the parts of all items."""
        return tuple(part for item in self.output or () for part in item.parts())

    def calls(self) -> list[ResponsesFunctionCall]:
        """Return the tool calls in it."""
        return [item for item in self.output or () if isinstance(item, ResponsesFunctionCall)]

    def token_usage(self) -> Usage | None:
        """Return the token counts, None if the server reports none."""
        return self.usage.to_usage() if self.usage else None


class ResponsesEvent(Body):
    """An event of a stream. Events of types without a subclass are ignored."""

    type: str = ""


class ResponseFailed(ResponsesEvent):
    """The event that ends a stream with an error."""

    code: Any = None
    message: Any = None


class ResponsesDelta(ResponsesEvent):
    """A piece of an item's text."""

    output_index: int | None = None
    delta: str


class ResponsesTextDelta(ResponsesDelta):
    """A piece of the answer's text, or of the text of a refusal."""


class ArgumentsDelta(ResponsesDelta):
    """A piece of a call's arguments."""


class InputDelta(ResponsesDelta):
    """A piece of the input of a custom tool."""


class ReasoningDelta(ResponsesDelta):
    """A piece of a reasoning summary, or of reasoning in plain text."""

    item_id: str | None = None
    summary_index: int | None = None
    content_index: int | None = None


class ItemAdded(ResponsesEvent):
    """An item begins."""

    output_index: int | None = None
    item: AnyItem


class ItemDone(ResponsesEvent):
    """An item ends; the event contains the whole item."""

    output_index: int | None = None
    item: AnyItem


class ResponseEnded(ResponsesEvent):
    """The stream ends; the event contains the whole answer, which can be incomplete or failed."""

    response: ResponsesAnswer


EVENTS: Mapping[str, type[ResponsesEvent]] = {
    "response.output_item.added": ItemAdded,
    "response.output_item.done": ItemDone,
    "response.output_text.delta": ResponsesTextDelta,
    "response.refusal.delta": ResponsesTextDelta,
    "response.function_call_arguments.delta": ArgumentsDelta,
    "response.custom_tool_call_input.delta": InputDelta,
    "response.reasoning_summary_text.delta": ReasoningDelta,
    "response.reasoning_text.delta": ReasoningDelta,
    "response.completed": ResponseEnded,
    "response.incomplete": ResponseEnded,
    "response.failed": ResponseEnded,
    "error": ResponseFailed,
}
"""The classes of the events that are read, by type. All other events repeat their content or report progress."""
