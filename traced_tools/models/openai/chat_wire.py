"""What chat completions look like on the wire, as far as we read them; everything else in a body is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict

from traced_tools.core.messages import ImagePart, ProviderPart, Usage
from traced_tools.errors import InvalidResponse
from traced_tools.models.openai.common import CUSTOM
from traced_tools.models.wire import (
    FAIL_FAST,
    Body,
    ChunkContent,
    Wire,
    error_code,
    parse_body,
    to_json,
    to_sendable_json,
)


class CompletionFunction(Wire):
    """Name and arguments of a call; a delta may hold a piece of either. Some servers send arguments as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return to_json(self.arguments) if isinstance(self.arguments, dict) else self.arguments or ""


class CompletionCustomTool(Wire):
    """Name and input of a call of a custom tool; a delta may hold a piece of the input."""

    name: str | None = None
    input: str | None = None


class CompletionCall(Wire):
    """A tool call, or a delta of one: of a function, or of a custom tool, whose input is any text.

    `extra_content` is Google's place for what it wants back with the call: `google.thought_signature`.
    """

    index: int | None = None
    id: str | None = None
    function: CompletionFunction | None = None
    custom: CompletionCustomTool | None = None
    extra_content: dict[str, Any] | None = None

    @property
    def name(self) -> str | None:
        """The name of the function or custom tool."""
        named = self.custom or self.function
        return None if named is None else named.name

    @property
    def signature(self) -> str | None:
        """What else the call is, as JSON text; it goes back with the call."""
        if self.custom is None and not self.extra_content:
            return None
        kind = CUSTOM if self.custom is not None else {}
        return to_sendable_json({**kind, **({"extra_content": self.extra_content} if self.extra_content else {})})


class ImageUrl(Wire):
    """Where an image is; mostly in the address itself."""

    url: str | None = None


class ContentPiece(Wire):
    """A piece of a content that is a list: text, reasoning (Mistral), an image, or what only its provider knows."""

    model_config = ConfigDict(extra="allow")

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    thinking: str | Annotated[tuple[ContentPiece, ...], FAIL_FAST] | None = None
    image_url: str | ImageUrl | None = None

    def said(self) -> ChunkContent:
        """Return what it says."""
        if self.type == "thinking":
            return "", self._thoughts(), ()
        if url := self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url:
            return "", "", (ImagePart(url=url),)
        if self.text or self.refusal or self.type == "text":
            return self.text or self.refusal or "", "", ()
        return "", "", (ProviderPart(to_sendable_json(self.model_dump(exclude_unset=True))),)

    def _thoughts(self) -> str:
        if isinstance(self.thinking, tuple):
            return "".join([piece.text or "" for piece in self.thinking])
        return self.thinking or ""


class CompletionMessage(Wire):
    """A message, or a delta of one. Reasoning goes by several names, and the call of old had a field of its own.

    Cloudflare's Workers AI sends an answer that is held to a schema as an object; it is read as JSON text.
    """

    content: str | Annotated[tuple[ContentPiece, ...], FAIL_FAST] | dict[str, Any] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: Annotated[tuple[dict[str, Any], ...], FAIL_FAST] | None = None
    images: Annotated[tuple[ContentPiece, ...], FAIL_FAST] | None = None
    tool_calls: Annotated[tuple[CompletionCall, ...], FAIL_FAST] | None = None
    function_call: CompletionFunction | None = None

    def said(self) -> list[ChunkContent]:
        """Return what it says, its calls aside: a text and its reasoning, and after that what comes piece by piece."""
        content = to_sendable_json(self.content) if isinstance(self.content, dict) else self.content or ""
        text, pieces = (content, ()) if isinstance(content, str) else ("", content)
        plain: ChunkContent = text + (self.refusal or ""), self._thoughts(), ()
        rest = [piece.said() for piece in (*pieces, *(self.images or ()))]
        return [plain, *rest] if any(plain) or not rest else rest

    def _thoughts(self) -> str:
        return self.reasoning or self.reasoning_content or "".join(map(_text_of, self.reasoning_details or ()))

    @property
    def calls(self) -> tuple[CompletionCall, ...]:
        """The calls, or pieces of them."""
        calls, old = self.tool_calls or (), self.function_call
        return (*calls, CompletionCall(function=old)) if old is not None and (old.name or old.arguments) else calls


class CompletionTokenDetails(Wire):
    """Of which: read from a cache, written to one, spent on thinking."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


_NO_DETAILS = CompletionTokenDetails()


class CompletionUsage(Wire):
    """Usage. Mistral and DeepSeek have names of their own for what was cached, Perplexity one for thinking."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: CompletionTokenDetails | None = None
    completion_tokens_details: CompletionTokenDetails | None = None
    num_cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    reasoning_tokens: int | None = None

    def to_usage(self) -> Usage:
        """Return this usage in our terms."""
        prompt, completion = self.prompt_tokens_details or _NO_DETAILS, self.completion_tokens_details or _NO_DETAILS
        reasoning = _first(completion.reasoning_tokens, self.reasoning_tokens)
        return Usage(
            input_tokens=self.prompt_tokens,
            output_tokens=self._output(reasoning),
            cache_read_tokens=_first(prompt.cached_tokens, self.num_cached_tokens, self.prompt_cache_hit_tokens),
            cache_write_tokens=prompt.cache_write_tokens,
            reasoning_tokens=reasoning,
        )

    def _output(self, reasoning: int | None) -> int | None:
        """Return all output. xAI counts thinking beside it and not in it, which only the total shows."""
        if self.completion_tokens is None or reasoning is None:
            return self.completion_tokens
        output = self.completion_tokens + reasoning
        return output if self.total_tokens == (self.prompt_tokens or 0) + output else self.completion_tokens


class VendorUsage(Wire):
    """Groq's own place for usage on streams."""

    usage: CompletionUsage | None = None


class Choice(Wire):
    """A choice of an answer, whole (`message`) or in pieces (`delta`). OpenRouter tells here what failed behind it."""

    index: int | None = None
    message: CompletionMessage | None = None
    delta: CompletionMessage | None = None
    finish_reason: str | None = None
    error: Any = None


class Completion(Body):
    """An answer, or an event of a streamed one, in which usage may come with no choice at all.

    A body that is itself an error object, as Mistral and older vLLM send, has its `type` and `code` here.
    """

    object: str | None = None
    type: str | None = None
    code: Any = None
    id: str | None = None
    model: str | None = None
    choices: Annotated[tuple[Choice, ...], FAIL_FAST] | None = None
    usage: CompletionUsage | None = None
    x_groq: VendorUsage | None = None

    @property
    def choice(self) -> Choice | None:
        """The first choice; nobody asked for others."""
        for choice in self.choices or ():
            if not choice.index:
                return choice
        return None

    def token_usage(self) -> Usage | None:
        """Return the usage, wherever it stands."""
        used = self.usage or (self.x_groq and self.x_groq.usage)
        return used.to_usage() if used else None


def read_completion(body: str | bytes, what: str, provider: str) -> Completion:
    """Return `body` as `read` does; raises `InvalidResponse` wherever in it an error stands, too."""
    found = parse_body(Completion, body, what, provider)
    choice = found.choice
    if found.object == "error":
        raise InvalidResponse(f"{what} is an error object", provider=provider, code=error_code(dict(found)))
    if choice is not None and choice.error:
        raise InvalidResponse(f"{what} holds an error object", provider=provider, code=error_code(choice.error))
    return found


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def _text_of(detail: Mapping[str, Any]) -> str:
    """Return what a person can read of a detail of reasoning."""
    text = detail.get("text") or detail.get("summary")
    return text if isinstance(text, str) else ""
