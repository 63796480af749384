"""What chat completions look like on the wire, as far as we read them; everything else in a body is ignored."""

from __future__ import annotations

from typing import Any

from traced_tools.messages import Usage
from traced_tools.models.wire import Body, Wire, written


class Function(Wire):
    """Name and arguments of a call; a delta may hold a piece of either. Some servers send arguments as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        if isinstance(self.arguments, dict):
            return written(self.arguments)
        return self.arguments or ""


class Call(Wire):
    """A tool call, or a delta of one."""

    index: int | None = None
    id: str | None = None
    function: Function = Function()


class Answer(Wire):
    """A message, or a delta of one. Reasoning goes by two names."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None

    @property
    def text(self) -> str:
        """The text, which for a refusal is its reason."""
        return self.content or self.refusal or ""

    @property
    def thoughts(self) -> str:
        """The reasoning text."""
        return self.reasoning or self.reasoning_content or ""


class TokenDetails(Wire):
    """Of which: read from a cache, spent on thinking."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Used(Wire):
    """Usage."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None

    def usage(self) -> Usage:
        """Return this usage in our terms."""
        read, written = self.prompt_tokens_details, self.completion_tokens_details
        return Usage(
            input_tokens=self.prompt_tokens,
            output_tokens=self.completion_tokens,
            cache_read_tokens=None if read is None else read.cached_tokens,
            reasoning_tokens=None if written is None else written.reasoning_tokens,
        )


class VendorUsage(Wire):
    """Groq's own place for usage on streams."""

    usage: Used | None = None


class _Body(Body):
    id: str | None = None
    model: str | None = None
    usage: Used | None = None
    x_groq: VendorUsage | None = None

    def used(self) -> Usage | None:
        """Return the usage, wherever it stands."""
        used = self.usage or (self.x_groq and self.x_groq.usage)
        return used.usage() if used else None


class Choice(Wire):
    """A choice of a whole answer."""

    message: Answer
    finish_reason: str | None = None


class Completion(_Body):
    """A whole answer."""

    choices: tuple[Choice, ...] = ()


class ChoiceDelta(Wire):
    """A choice of a streamed answer."""

    delta: Answer = Answer()
    finish_reason: str | None = None


class CompletionChunk(_Body):
    """An event of a streamed answer; usage may come with no choice at all."""

    choices: tuple[ChoiceDelta, ...] = ()
