"""The fields of chat completions that this package reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict

from traced_tools.core.messages import ImagePart, ProviderPart, Usage
from traced_tools.models.openai.common import CUSTOM
from traced_tools.models.parsing import (
    FAIL_FAST,
    Body,
    ChunkContent,
    Wire,
    parse_body,
    to_json,
    to_sendable_json,
)
from traced_tools.models.refusals import error_in_answer


class CompletionFunction(Wire):
    """The name and arguments of a call, or a piece of them. Some servers send the arguments as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return to_json(self.arguments) if isinstance(self.arguments, dict) else self.arguments or ""


class CompletionCustomTool(Wire):
    """The name and input of a call of a custom tool, or a piece of the input."""

    name: str | None = None
    input: str | None = None


class CompletionCall(Wire):
    """A call of a function or of a custom tool, whose input is free text; or a delta of a call.

    In `extra_content`, Google sends a field that must be sent back with the call: `google.thought_signature`.
    """

    index: int | None = None
    id: str | None = None
    function: CompletionFunction | None = None
    custom: CompletionCustomTool | None = None
    extra_content: dict[str, Any] | None = None

    @property
    def name(self) -> str | None:
        """The name of the function or custom tool."""
        call = self.custom or self.function
        return None if call is None else call.name

    @property
    def signature(self) -> str | None:
        """Further fields to send back with the call, as JSON text; None if there are none."""
        if self.custom is None and not self.extra_content:
            return None
        kind = CUSTOM if self.custom is not None else {}
        return to_sendable_json({**kind, **({"extra_content": self.extra_content} if self.extra_content else {})})


class ImageUrl(Wire):
    """The URL of an image, usually a `data:` URL."""

    url: str | None = None


class ContentPiece(Wire):
    """An item of a content list: text, reasoning (Mistral), an image, or something only the provider can read."""

    model_config = ConfigDict(extra="allow")

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    thinking: str | Annotated[tuple[ContentPiece, ...], FAIL_FAST] | None = None
    image_url: str | ImageUrl | None = None

    def to_content(self) -> ChunkContent:
        """Return the item's content."""
        if self.type == "thinking":
            return "", self._reasoning_text(), ()
        if url := self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url:
            return "", "", (ImagePart(url=url),)
        if self.text or self.refusal or self.type == "text":
            return self.text or self.refusal or "", "", ()
        return "", "", (ProviderPart(to_sendable_json(self.model_dump(exclude_unset=True))),)

    def _reasoning_text(self) -> str:
        if isinstance(self.thinking, tuple):
            return "".join([piece.text or "" for piece in self.thinking])
        return self.thinking or ""


class CompletionMessage(Wire):
    """A message or a delta of one.

    Servers use several fields for reasoning, and the legacy field `function_call` for a single call. Cloudflare's
    Workers AI sends an answer that follows a schema as an object, which is converted to JSON text.
    """

    content: str | Annotated[tuple[ContentPiece, ...], FAIL_FAST] | dict[str, Any] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: Annotated[tuple[dict[str, Any], ...], FAIL_FAST] | None = None
    images: Annotated[tuple[ContentPiece, ...], FAIL_FAST] | None = None
    tool_calls: Annotated[tuple[CompletionCall, ...], FAIL_FAST] | None = None
    function_call: CompletionFunction | None = None

    def to_contents(self) -> list[ChunkContent]:
        """Return the contents except calls: first the text and reasoning, then the list items and images."""
        content = to_sendable_json(self.content) if isinstance(self.content, dict) else self.content or ""
        text, pieces = (content, ()) if isinstance(content, str) else ("", content)
        plain: ChunkContent = text + (self.refusal or ""), self._reasoning_text(), ()
        rest = [piece.to_content() for piece in (*pieces, *(self.images or ()))]
        return [plain, *rest] if any(plain) or not rest else rest

    def _reasoning_text(self) -> str:
        return self.reasoning or self.reasoning_content or "".join(map(_detail_text, self.reasoning_details or ()))

    @property
    def calls(self) -> tuple[CompletionCall, ...]:
        """The calls, or pieces of them."""
        calls, old = self.tool_calls or (), self.function_call
        return (*calls, CompletionCall(function=old)) if old is not None and (old.name or old.arguments) else calls


class CompletionTokenDetails(Wire):
    """The parts of the tokens that were read from a cache, written to one, or spent on reasoning."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


_NO_DETAILS = CompletionTokenDetails()


class CompletionUsage(Wire):
    """Token counts. Mistral and DeepSeek have other fields for cached tokens, Perplexity for reasoning tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: CompletionTokenDetails | None = None
    completion_tokens_details: CompletionTokenDetails | None = None
    num_cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    reasoning_tokens: int | None = None

    def to_usage(self) -> Usage:
        """Convert to `Usage`."""
        prompt, completion = self.prompt_tokens_details or _NO_DETAILS, self.completion_tokens_details or _NO_DETAILS
        reasoning = _first_known(completion.reasoning_tokens, self.reasoning_tokens)
        return Usage(
            input_tokens=self.prompt_tokens,
            output_tokens=self._output_tokens(reasoning),
            cache_read_tokens=_first_known(prompt.cached_tokens, self.num_cached_tokens, self.prompt_cache_hit_tokens),
            cache_write_tokens=prompt.cache_write_tokens,
            reasoning_tokens=reasoning,
        )

    def _output_tokens(self, reasoning: int | None) -> int | None:
        """Return the output tokens including reasoning. xAI excludes reasoning, as only its total reveals."""
        if self.completion_tokens is None or reasoning is None:
            return self.completion_tokens
        output = self.completion_tokens + reasoning
        return output if self.total_tokens == (self.prompt_tokens or 0) + output else self.completion_tokens


class GroqUsage(Wire):
    """Groq's field for usage on streams."""

    usage: CompletionUsage | None = None


class Choice(Wire):
    """A choice of an answer, whole (`message`) or a piece (`delta`). OpenRouter reports a provider's error here."""

    index: int | None = None
    message: CompletionMessage | None = None
    delta: CompletionMessage | None = None
    finish_reason: str | None = None
    error: Any = None


class Completion(Body):
    """A whole answer or an event of a streamed answer. An event with usage may have no choice.

    Mistral and older vLLM send error objects as the whole body; `type`, `code` and `message` are then the error's.
    """

    object: str | None = None
    type: str | None = None
    code: Any = None
    message: Any = None
    id: str | None = None
    model: str | None = None
    choices: Annotated[tuple[Choice, ...], FAIL_FAST] | None = None
    usage: CompletionUsage | None = None
    x_groq: GroqUsage | None = None

    @property
    def choice(self) -> Choice | None:
        """The first choice by index; requests never ask for more than one."""
        for choice in self.choices or ():
            if not choice.index:
                return choice
        return None

    def token_usage(self) -> Usage | None:
        """Return the token counts from either field, None if there are none."""
        usage = self.usage or (self.x_groq and self.x_groq.usage)
        return usage.to_usage() if usage else None


def read_completion(body: str | bytes, what: str, provider: str) -> Completion:
    """Parse `body` as `parse_body` does; also raises a `ModelError` for an error object outside `error`."""
    completion = parse_body(Completion, body, what, provider)
    choice = completion.choice
    if completion.object == "error":
        raise error_in_answer(f"{what} is an error object", provider, dict(completion))
    if choice is not None and choice.error:
        raise error_in_answer(f"{what} contains an error object", provider, choice.error)
    return completion


def _first_known(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def _detail_text(detail: Mapping[str, Any]) -> str:
    """Return the readable text of a reasoning detail."""
    text = detail.get("text") or detail.get("summary")
    return text if isinstance(text, str) else ""
