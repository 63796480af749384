"""What the Responses API looks like on the wire, as far as we read it; everything else in a body is ignored.

An answer is a list of items. Each says what it is as parts of a message: as a whole, or, where its text has been
streamed, what is left to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Base64Bytes, Discriminator, Tag, model_validator

from traced_tools.core.messages import AssistantPart, ImagePart, ProviderPart, ReasoningPart, TextPart, ToolCall, Usage
from traced_tools.models.base import ToolCallDelta
from traced_tools.models.openai.common import CUSTOM, input_to_arguments
from traced_tools.models.wire import FAIL_FAST, Body, Wire, to_json, to_sendable_json


class ResponsesItem(Wire):
    """An item of an answer: of a kind that only the server understands, unless a subclass reads it."""

    raw: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _with_raw(cls, value: Any) -> Any:
        return {**value, "raw": value} if isinstance(value, dict) else value

    def fields(self, *names: str) -> dict[str, Any]:
        """Return those of these fields that say something."""
        return {name: self.raw[name] for name in names if self.raw.get(name)}

    def parts(self) -> Iterator[AssistantPart]:
        """Give the whole item."""
        yield ProviderPart(to_sendable_json(self.raw))

    def rest(self) -> Iterator[AssistantPart]:
        """Give what is left to say of an item whose text has been streamed."""
        yield from self.parts()


class ResponsesPiece(Wire):
    """A piece of an item's content: a text, or the reason of a refusal."""

    text: str | None = None
    refusal: str | None = None

    @property
    def words(self) -> str:
        """What it says."""
        return self.text or self.refusal or ""


class ResponsesMessage(ResponsesItem):
    """A message; its text is followed by the record of what else it is, which a stream tells when the text is over."""

    content: Annotated[tuple[ResponsesPiece, ...], FAIL_FAST] | None = None

    def parts(self) -> Iterator[AssistantPart]:
        """Give the text and the record, nothing if there is no text."""
        if text := "".join(piece.words for piece in self.content or ()):
            yield TextPart(text)
            yield from self.rest()

    def rest(self) -> Iterator[AssistantPart]:
        """Give the record."""
        if fields := self.fields("id", "phase"):
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
        """What else it is, as JSON text."""
        fields = self.fields("id", "namespace")
        return to_sendable_json(fields) if fields else None

    def delta(self, index: int | None, arguments: str = "") -> ToolCallDelta:
        """Return a piece of this call, the `index`th item."""
        return ToolCallDelta(index, self.call_id, self.name, arguments, self.signature)

    def parts(self) -> Iterator[AssistantPart]:
        """Give the call."""
        yield ToolCall(self.name, self.text, self.call_id, signature=self.signature)

    def rest(self) -> Iterator[AssistantPart]:
        """Give nothing: who it is was said when it began."""
        return iter(())


class ResponsesCustomCall(ResponsesFunctionCall):
    """A call of a custom tool, whose input is any text and not JSON."""

    input: str | None = None
    status: str | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether the input ends before the model finished it."""
        return self.status == "incomplete"

    @property
    def text(self) -> str:
        """The arguments as JSON text: the input is the field `input` of an object."""
        return input_to_arguments(self.input or "", is_cut_off=self.is_cut_off)

    @property
    def signature(self) -> str:
        """What else it is, as JSON text."""
        return to_sendable_json({**CUSTOM, **self.fields("id", "namespace")})


class Reasoning(ResponsesItem):
    """Thoughts: summarized, encrypted, or, as DeepSeek and vLLM give them, in the open as `content`.

    Open thoughts go back as the item they came in, so they are followed by it; the others as their parts.
    """

    id: str | None = None
    summary: Annotated[tuple[ResponsesPiece, ...], FAIL_FAST] | None = None
    content: Annotated[tuple[ResponsesPiece, ...], FAIL_FAST] | None = None
    encrypted_content: str | None = None

    def parts(self) -> Iterator[AssistantPart]:
        """Give a part for each summary, the last one with the encrypted thoughts; or the open thoughts."""
        if self.content:
            yield from [ReasoningPart(piece.words) for piece in (*(self.summary or ()), *self.content)]
            yield from super().parts()
            return
        *first, last = [piece.words for piece in self.summary or ()] or [""]
        yield from [ReasoningPart(text, id=self.id) for text in first]
        yield self._last(last)

    def rest(self) -> Iterator[AssistantPart]:
        """Give what ends the thoughts before."""
        if self.content:
            yield from super().parts()
        else:
            yield self._last("")

    def _last(self, text: str) -> ReasoningPart:
        return ReasoningPart(text, id=self.id, signature=self.encrypted_content or None)


class GeneratedImage(ResponsesItem):
    """The record of an image the server has made."""

    result: Base64Bytes | None = None
    output_format: str | None = None

    def parts(self) -> Iterator[AssistantPart]:
        """Give the image to look at, and the record to send back."""
        if self.result:
            kind = "png" if self.output_format is None else self.output_format
            yield ImagePart(data=self.result, media_type=f"image/{kind}")
        yield from super().parts()


_KINDS = ("message", "function_call", "custom_tool_call", "reasoning", "image_generation_call")


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else None
    return kind if kind in _KINDS else "other"


AnyItem = Annotated[
    Annotated[ResponsesMessage, Tag("message")]
    | Annotated[ResponsesFunctionCall, Tag("function_call")]
    | Annotated[ResponsesCustomCall, Tag("custom_tool_call")]
    | Annotated[Reasoning, Tag("reasoning")]
    | Annotated[GeneratedImage, Tag("image_generation_call")]
    | Annotated[ResponsesItem, Tag("other")],
    Discriminator(_kind),
]


class ResponsesTokenDetails(Wire):
    """Of which: read from a cache, spent on thinking."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ResponsesUsage(Wire):
    """Usage."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: ResponsesTokenDetails | None = None
    output_tokens_details: ResponsesTokenDetails | None = None

    def to_usage(self) -> Usage:
        """Return this usage in our terms."""
        input_details, output_details = self.input_tokens_details, self.output_tokens_details
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cache_read_tokens=None if input_details is None else input_details.cached_tokens,
            reasoning_tokens=None if output_details is None else output_details.reasoning_tokens,
        )


class IncompleteDetails(Wire):
    """Why an answer ends early."""

    reason: str | None = None


class ResponsesAnswer(Body):
    """An answer, whole or as far as a stream has come."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    incomplete_details: IncompleteDetails | None = None
    output: Annotated[tuple[AnyItem, ...], FAIL_FAST] | None = None
    usage: ResponsesUsage | None = None

    def parts(self) -> tuple[AssistantPart, ...]:
        """Return all that is said in it."""
        return tuple(part for item in self.output or () for part in item.parts())

    def calls(self) -> list[ResponsesFunctionCall]:
        """Return the tool calls in it."""
        return [item for item in self.output or () if isinstance(item, ResponsesFunctionCall)]

    def token_usage(self) -> Usage | None:
        """Return the usage, if the server tells it."""
        return self.usage.to_usage() if self.usage else None


class ResponsesEvent(Body):
    """An event of a stream, of a kind that says nothing to us unless a subclass reads it."""

    type: str = ""


class ResponseFailed(ResponsesEvent):
    """The end of a stream that has failed."""

    code: Any = None


class ResponsesDelta(ResponsesEvent):
    """A piece of an item's text."""

    output_index: int | None = None
    delta: str


class ResponsesTextDelta(ResponsesDelta):
    """A piece of the answer, or of the reason of a refusal."""


class ArgumentsDelta(ResponsesDelta):
    """A piece of a call's arguments."""


class InputDelta(ResponsesDelta):
    """A piece of the input of a custom tool."""


class ReasoningDelta(ResponsesDelta):
    """A piece of one of the summaries, or of one of the open thoughts."""

    item_id: str | None = None
    summary_index: int | None = None
    content_index: int | None = None


class ItemAdded(ResponsesEvent):
    """An item begins."""

    output_index: int | None = None
    item: AnyItem


class ItemDone(ResponsesEvent):
    """An item is complete, and here in full."""

    output_index: int | None = None
    item: AnyItem


class ResponseEnded(ResponsesEvent):
    """The answer is complete, or as complete as it will be, and here in full."""

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
"""The events that are read; all others repeat what these say, or tell of progress."""
