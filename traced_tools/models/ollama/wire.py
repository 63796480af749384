"""What Ollama's own API looks like on the wire, as far as we read it; everything else in a body is ignored."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Base64Bytes, Field

from traced_tools.core.messages import Usage
from traced_tools.models.wire import FAIL_FAST, MOST_ITEMS, Body, Wire


class OllamaFunction(Wire):
    """Name and arguments of a call; both are whole, in a stream too."""

    name: str = ""
    arguments: dict[str, Any] | None = None


class OllamaCall(Wire):
    """A tool call; older servers give it no id."""

    id: str | None = None
    function: OllamaFunction = OllamaFunction()


class OllamaMessage(Wire):
    """A message, or what a line of a stream adds to it."""

    content: str | None = None
    thinking: str | None = None
    images: Annotated[tuple[Base64Bytes, ...], Field(fail_fast=True, max_length=MOST_ITEMS)] | None = None
    tool_calls: Annotated[tuple[OllamaCall, ...], FAIL_FAST] | None = None


_NOTHING = OllamaMessage()


class OllamaAnswer(Body):
    """A whole answer, or a line of a streamed one, of which the last is `done`."""

    model: str | None = None
    message: OllamaMessage | None = None
    done: bool | None = None
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    prompt_eval_cached_count: int | None = None
    eval_count: int | None = None

    @property
    def said(self) -> OllamaMessage:
        """The message, or what the line adds to it."""
        return self.message or _NOTHING

    def token_usage(self) -> Usage | None:
        """Return the usage, if the body tells any; counts of zero are left out of it."""
        if self.prompt_eval_count is None and self.eval_count is None:
            return None
        return Usage(
            input_tokens=self.prompt_eval_count,
            output_tokens=self.eval_count,
            cache_read_tokens=self.prompt_eval_cached_count,
        )
