"""The fields of Ollama's chat API that this package reads."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Base64Bytes, Field

from traced_tools.core.messages import Usage
from traced_tools.models.parsing import FAIL_FAST, MOST_ITEMS, Body, Wire


class OllamaFunction(Wire):
    """The name and arguments of a call; both are complete, even in a stream."""

    name: str = ""
    arguments: dict[str, Any] | None = None


class OllamaCall(Wire):
    """A tool call; older servers send no id."""

    id: str | None = None
    function: OllamaFunction = OllamaFunction()


class OllamaMessage(Wire):
    """A message, or the piece of it in one line of a stream."""

    content: str | None = None
    thinking: str | None = None
    images: Annotated[tuple[Base64Bytes, ...], Field(fail_fast=True, max_length=MOST_ITEMS)] | None = None
    tool_calls: Annotated[tuple[OllamaCall, ...], FAIL_FAST] | None = None


_NOTHING = OllamaMessage()


class OllamaAnswer(Body):
    """A whole answer, or one line of a streamed answer. The last line is `done`."""

    model: str | None = None
    message: OllamaMessage | None = None
    done: bool | None = None
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    prompt_eval_cached_count: int | None = None
    eval_count: int | None = None

    @property
    def message_or_empty(self) -> OllamaMessage:
        """The message, empty if the body has none."""
        return self.message or _NOTHING

    def token_usage(self) -> Usage | None:
        """Return the token counts, None if the body has none. Ollama omits counts of zero."""
        if self.prompt_eval_count is None and self.eval_count is None:
            return None
        return Usage(
            input_tokens=self.prompt_eval_count,
            output_tokens=self.eval_count,
            cache_read_tokens=self.prompt_eval_cached_count,
        )
