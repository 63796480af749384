"""What travels through the advisor chain: a request inward, a response outward. Both immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from traced_tools.core.checks import expect_each
from traced_tools.core.conversation import with_results
from traced_tools.core.enums import StopReason
from traced_tools.core.messages import (
    ANY_MESSAGE,
    MESSAGE_TYPES,
    AssistantMessage,
    FinishReason,
    Message,
    ToolCall,
    Usage,
)
from traced_tools.core.options import NO_OPTIONS, ChatOptions
from traced_tools.core.quick_init import quick_init
from traced_tools.core.tool_result import ToolResult
from traced_tools.core.totals import NestedUsage
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse
from traced_tools.run.context import RunContext
from traced_tools.tools.toolset import NO_TOOLS, ToolSet


@quick_init
@dataclass(frozen=True, slots=True, repr=False)
class ChatClientRequest:
    """One request through the chain.

    Attributes:
        messages: the conversation to send. A call in it without a result gets one that says it was not run.
        tools: the tools the model may call; any sequence of `ToolCallback`s is accepted.
        options: how the model is asked.
        context: what advisors pass to each other, the caller's `params` to begin with; it comes back on the response.
        iteration: the pass of the tool loop, from 1; 0 outside it.
        run: identity, limits and tallies of the run.
    """

    messages: tuple[Message, ...]
    tools: ToolSet = NO_TOOLS
    options: ChatOptions = NO_OPTIONS
    context: Mapping[str, Any] = field(default_factory=dict)
    iteration: int = 0
    run: RunContext = field(default_factory=RunContext)

    def __post_init__(self) -> None:
        if self.messages is not self.run.complete:  # most replaced copies share the tuple
            given = tuple(self.messages)
            expect_each("messages", given, MESSAGE_TYPES, ANY_MESSAGE)
            messages = with_results(given)
            object.__setattr__(self, "messages", messages)
            self.run.complete = messages
        if type(self.tools) is not ToolSet:
            object.__setattr__(self, "tools", ToolSet(self.tools))

    @property
    def conversation_id(self) -> str | None:
        """The caller's conversation, when it gave one."""
        return self.run.conversation_id

    def replace(self, **changes: Any) -> ChatClientRequest:
        """Return a copy with `changes`."""
        return ChatClientRequest(
            **{
                "messages": self.messages,
                "tools": self.tools,
                "options": self.options,
                "context": self.context,
                "iteration": self.iteration,
                "run": self.run,
                **changes,
            }
        )

    def chat_request(self) -> ChatRequest:
        """Return what the model is asked."""
        return ChatRequest(self.messages, self.tools.definitions, self.options)

    def __repr__(self) -> str:
        return f"<ChatClientRequest: {len(self.messages)} messages, {len(self.tools)} tools, pass {self.iteration}>"


@quick_init
@dataclass(frozen=True, slots=True, repr=False)
class ChatClientResponse:
    """What comes back: of a pass to an advisor, of the run to the caller, and each chunk of a stream.

    Attributes:
        run: the run it belongs to.
        chat_response: the model's answer; None when there is none, as in a chunk.
        messages: the whole conversation, tool exchanges and this answer included.
        usage: tokens; of this pass inside the loop, of the run for the caller.
        stop_reason: why the run ended: `answered`, `return_direct`, `advisor` (one ended the run with `call.end`, or
            answered and no model was asked), or the limit it broke (see `LoopLimits`).
        tool_results: what became of each call of the run, in order.
        context: what advisors pass to each other.
        iteration: the pass of the tool loop it belongs to.
        offered: the tools the model was offered.
        delta: in a chunk, what arrived.
    """

    run: RunContext
    chat_response: ChatResponse | None = None
    messages: tuple[Message, ...] = ()
    usage: Usage | None = None
    stop_reason: StopReason = "answered"
    tool_results: tuple[ToolResult, ...] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    iteration: int = 0
    offered: ToolSet = NO_TOOLS
    delta: ChatChunk | None = None

    @property
    def content(self) -> str:
        """The text of the answer, or of the chunk."""
        if self.delta is not None:
            return self.text
        return "" if self.chat_response is None else self.chat_response.message.text

    @property
    def text(self) -> str:
        """In a chunk, the text that arrived; else the text of the answer."""
        if self.delta is None:
            return self.content
        return self.delta.visible_text

    @property
    def message(self) -> AssistantMessage:
        """The model's message; empty when there is none."""
        return AssistantMessage() if self.chat_response is None else self.chat_response.message

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls the last answer asks for; in a chunk, those it holds a piece of."""
        if self.delta is not None:
            return self.delta.calls() if self.delta.has_calls else ()
        return () if self.chat_response is None else self.chat_response.tool_calls

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the model stopped: `stop`, `length`, `tool_call`, `content_filter` or `error`."""
        if self.delta is not None:
            return self.delta.finish_reason
        return None if self.chat_response is None else self.chat_response.finish_reason

    @property
    def run_id(self) -> str:
        """The run's id: the join key of trace, events and audit."""
        return self.run.id

    @property
    def trace_id(self) -> str | None:
        """The run's trace in hex; None when nothing is traced."""
        return self.run.trace_id

    @property
    def conversation_id(self) -> str | None:
        """The caller's conversation, when it gave one."""
        return self.run.conversation_id

    @property
    def nested_usage(self) -> NestedUsage | None:
        """What the runs nested in this one used, at any depth; None when there are none.

        `usage` does not include it. A nested run that goes on after this one has ended still adds to it.
        """
        return self.run.totals.nested_usage()

    def replace(self, **changes: Any) -> ChatClientResponse:
        """Return a copy with `changes`."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        return f"<ChatClientResponse of run {self.run.id}: {self.stop_reason}, pass {self.iteration}>"
