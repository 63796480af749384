"""What Gemini's answers look like on the wire, as far as we read them; everything else in a body is ignored.

Format: https://ai.google.dev/api/generate-content.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, model_validator
from pydantic.alias_generators import to_camel

from traced_tools.core.messages import Usage, sum_known
from traced_tools.models.wire import FAIL_FAST, Body, Wire, to_sendable_json

_CAMEL = ConfigDict(alias_generator=to_camel)
_WHOLE = ConfigDict(alias_generator=to_camel, extra="allow")
"""Keeps what it does not know, so that a part can go back as it came."""


class PartialArg(Wire):
    """A piece of a call's arguments: a value, or a piece of a text, and its place."""

    model_config = _CAMEL

    json_path: str
    string_value: str | None = None
    number_value: int | float | None = None
    bool_value: bool | None = None
    null_value: Any = None
    will_continue: bool | None = None

    @property
    def value(self) -> str | int | float | bool | None:
        """The value; None stands for null, too."""
        given = (self.string_value, self.number_value, self.bool_value)
        return next((value for value in given if value is not None), None)

    @property
    def has_value(self) -> bool:
        """Whether there is a value, which may be null."""
        return self.value is not None or "null_value" in self.model_fields_set


class GeminiFunctionCall(Wire):
    """A call, or a piece of one; one without arguments may lack them, and only some models give ids."""

    model_config = _CAMEL

    name: str | None = None
    args: dict[str, Any] | None = None
    id: str | None = None
    partial_args: Annotated[tuple[PartialArg, ...], FAIL_FAST] | None = None
    will_continue: bool | None = None

    @property
    def is_piece(self) -> bool:
        """Whether the arguments come in pieces."""
        return bool(self.will_continue) or self.partial_args is not None

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing, as the end of a call that came in pieces does."""
        return not (self.name or self.args or self.id)


class Blob(Wire):
    """Bytes, in base64."""

    model_config = _WHOLE

    mime_type: str | None = None
    data: str | None = None


class Part(Wire):
    """A part of an answer: a text, a call, bytes, or something else that only Gemini understands."""

    model_config = _WHOLE

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: GeminiFunctionCall | None = None
    inline_data: Blob | None = None

    @property
    def image(self) -> Blob | None:
        """The bytes of an image that is no thought."""
        found = None if self.thought else self.inline_data
        return found if found and (found.mime_type or "").startswith("image/") else None

    @property
    def is_text(self) -> bool:
        """Whether it is a text, which a part with nothing in it but a signature counts as."""
        if self.inline_data or self.function_call:  # some gateways write out the fields of others, too
            return False
        return self.text is not None or not self.model_extra

    @property
    def words(self) -> str:
        """The text that stands beside a call or an image."""
        return (self.text or "") if self.function_call or self.image else ""

    def as_it_came(self) -> str:
        """Return the part as JSON text."""
        return to_sendable_json(self.model_dump(by_alias=True, exclude_unset=True))


class GeminiContent(Wire):
    """What a candidate says; a filtered one says nothing."""

    parts: Annotated[tuple[Part, ...], FAIL_FAST] | None = None


class Candidate(Wire):
    """One of the answers, or a piece of it."""

    model_config = _CAMEL

    content: GeminiContent | None = None
    finish_reason: str | None = None
    index: int | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the answer, or the next pieces of it."""
        return (self.content.parts or ()) if self.content else ()


class GeminiUsage(Wire):
    """Usage. In a stream it counts from the beginning; results of Google's own tools are no part of the prompt."""

    model_config = _CAMEL

    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None

    def to_usage(self) -> Usage:
        """Return this usage in our terms."""
        return Usage(
            input_tokens=sum_known(self.prompt_token_count, self.tool_use_prompt_token_count),
            output_tokens=sum_known(self.candidates_token_count, self.thoughts_token_count),
            cache_read_tokens=self.cached_content_token_count,
            reasoning_tokens=self.thoughts_token_count,
        )


class PromptFeedback(Wire):
    """Why there is no answer: Gemini would not read the prompt."""

    model_config = _CAMEL

    block_reason: str | None = None


class GeminiEvent(Body):
    """A whole answer, or an event of a streamed one; they look alike."""

    model_config = _CAMEL

    candidates: Annotated[tuple[Candidate, ...], FAIL_FAST] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: GeminiUsage | None = None
    model_version: str | None = None
    response_id: str | None = None

    @property
    def candidate(self) -> Candidate | None:
        """The first of the answers, wherever it stands."""
        for each in self.candidates or ():
            if not each.index:
                return each
        return None

    @property
    def is_refusal(self) -> bool:
        """Whether Gemini would not read the prompt."""
        return bool(self.prompt_feedback and self.prompt_feedback.block_reason)


class GeminiAnswer(Body):
    """A whole answer: one event, or the list of them that a stream is without `alt=sse`."""

    events: Annotated[tuple[GeminiEvent, ...], FAIL_FAST]

    @model_validator(mode="before")
    @classmethod
    def _of_events(cls, body: Any) -> dict[str, Any]:
        events = body if isinstance(body, list) else [body]
        errors = (event["error"] for event in events if isinstance(event, dict) and event.get("error"))
        return {"events": events, "error": next(errors, None)}
