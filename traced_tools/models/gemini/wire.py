"""The fields of Gemini's answers that this package reads.

Format: https://ai.google.dev/api/generate-content.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, model_validator
from pydantic.alias_generators import to_camel

from traced_tools.core.messages import Usage, sum_known
from traced_tools.models.parsing import FAIL_FAST, Body, Wire, to_sendable_json

CAMEL = ConfigDict(alias_generator=to_camel)
_WHOLE = ConfigDict(alias_generator=to_camel, extra="allow")
"""Retains unknown fields, so that a part can be sent back unchanged."""


class PartialArg(Wire):
    """A piece of a call's arguments: a value or a piece of a text, and its JSON path."""

    model_config = CAMEL

    json_path: str
    string_value: str | None = None
    number_value: int | float | None = None
    bool_value: bool | None = None
    null_value: Any = None
    will_continue: bool | None = None

    @property
    def value(self) -> str | int | float | bool | None:
        """The value; None if it is null or there is no value."""
        values = (self.string_value, self.number_value, self.bool_value)
        return next((value for value in values if value is not None), None)

    @property
    def has_value(self) -> bool:
        """Whether there is a value, which may be null."""
        return self.value is not None or "null_value" in self.model_fields_set


class GeminiFunctionCall(Wire):
    """A call or a piece of one. `args` is missing in calls without arguments, and `id` with some models."""

    model_config = CAMEL

    name: str | None = None
    args: dict[str, Any] | None = None
    id: str | None = None
    partial_args: Annotated[tuple[PartialArg, ...], FAIL_FAST] | None = None
    will_continue: bool | None = None

    @property
    def is_piece(self) -> bool:
        """Whether the arguments arrive in pieces."""
        return bool(self.will_continue) or self.partial_args is not None

    @property
    def is_empty(self) -> bool:
        """Whether all fields are empty, as at the end of a call that arrived in pieces."""
        return not (self.name or self.args or self.id)


class Blob(Wire):
    """Bytes in base64."""

    model_config = _WHOLE

    mime_type: str | None = None
    data: str | None = None


class Part(Wire):
    """A part of an answer: a text, a call, bytes, or something that only Gemini can read."""

    model_config = _WHOLE

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: GeminiFunctionCall | None = None
    inline_data: Blob | None = None

    @property
    def image(self) -> Blob | None:
        """The bytes of an image that isn't part of the reasoning."""
        inline_data = None if self.thought else self.inline_data
        return inline_data if inline_data and (inline_data.mime_type or "").startswith("image/") else None

    @property
    def is_text(self) -> bool:
        """Whether the part is a text. A part that has only a signature counts as an empty text."""
        if self.inline_data or self.function_call:  # some gateways add an empty `text` to these parts
            return False
        return self.text is not None or not self.model_extra

    @property
    def text_beside(self) -> str:
        """The text in a part that also has a call or an image."""
        return (self.text or "") if self.function_call or self.image else ""

    def to_json(self) -> str:
        """Return the part as JSON text."""
        return to_sendable_json(self.model_dump(by_alias=True, exclude_unset=True))


class GeminiContent(Wire):
    """The content of a candidate; a filtered candidate has no parts."""

    parts: Annotated[tuple[Part, ...], FAIL_FAST] | None = None


class Candidate(Wire):
    """One of several alternative answers, or a piece of it."""

    model_config = CAMEL

    content: GeminiContent | None = None
    finish_reason: str | None = None
    index: int | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the answer, or of a piece of it."""
        return (self.content.parts or ()) if self.content else ()


class GeminiUsage(Wire):
    """Token counts. Each event of a stream has the counts so far; the prompt excludes results of Google's own tools."""

    model_config = CAMEL

    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None

    def to_usage(self) -> Usage:
        """Convert to `Usage`."""
        return Usage(
            input_tokens=sum_known(self.prompt_token_count, self.tool_use_prompt_token_count),
            output_tokens=sum_known(self.candidates_token_count, self.thoughts_token_count),
            cache_read_tokens=self.cached_content_token_count,
            reasoning_tokens=self.thoughts_token_count,
        )


class PromptFeedback(Wire):
    """The reason why Gemini refused the prompt."""

    model_config = CAMEL

    block_reason: str | None = None


class GeminiEvent(Body):
    """A whole answer or an event of a streamed answer, which have the same format."""

    model_config = CAMEL

    candidates: Annotated[tuple[Candidate, ...], FAIL_FAST] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: GeminiUsage | None = None
    model_version: str | None = None
    response_id: str | None = None

    @property
    def candidate(self) -> Candidate | None:
        """The first candidate by index, wherever it is in the list."""
        for candidate in self.candidates or ():
            if not candidate.index:
                return candidate
        return None

    @property
    def is_refusal(self) -> bool:
        """Whether Gemini refused the prompt."""
        return bool(self.prompt_feedback and self.prompt_feedback.block_reason)


class GeminiAnswer(Body):
    """The body of an answer: one event, or a list of events, which is the format of a stream without `alt=sse`."""

    events: Annotated[tuple[GeminiEvent, ...], FAIL_FAST]

    @model_validator(mode="before")
    @classmethod
    def _of_events(cls, body: Any) -> dict[str, Any]:
        events = body if isinstance(body, list) else [body]
        errors = (event["error"] for event in events if isinstance(event, dict) and event.get("error"))
        return {"events": events, "error": next(errors, None)}
