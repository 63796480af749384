"""The immutable request and response that pass through the advisor chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, Generic

from typing_extensions import TypeVar

from traced_tools.core.approval import PendingCall
from traced_tools.core.checks import expect_each
from traced_tools.core.conversation import (
    NOTHING_CHECKED,
    CheckedConversation,
    are_paired,
    with_paired_results,
    with_results,
)
from traced_tools.core.enums import StopReason
from traced_tools.core.evaluation import Evaluation
from traced_tools.core.frozen import frozen
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
from traced_tools.core.pickling import picklable
from traced_tools.core.tool_result import ToolResult
from traced_tools.core.totals import NestedUsage
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse
from traced_tools.run.context import RunContext
from traced_tools.tools.toolset import NO_TOOLS, ToolSet

if TYPE_CHECKING:
    from traced_tools.tools.schema.output import ParsedOutput, PartialOutput

OutputT = TypeVar("OutputT", default=Any)
_MOST_CHECKED: Final = 4
"""How many conversations a run remembers: those of the loop, of a memory inside it, and of advisors further inside."""


@frozen(repr=False)
class ChatClientRequest:
    """One request that passes through the advisor chain to the model.

    Attributes:
        messages: the conversation to send. A tool call without a result gets one that says it did not run. The model is
            sent each result directly after its call, and no result without a call.
        tools: the tools the model may call; any sequence of `ToolCallback`s is accepted.
        options: the model's options.
        context: data that advisors share, initially the caller's `params`. The response has it as well.
        iteration: the iteration of the tool loop, from 1; 0 outside the loop.
        run: the identity, limits and totals of the run.
    """

    messages: tuple[Message, ...]
    tools: ToolSet = NO_TOOLS
    options: ChatOptions = NO_OPTIONS
    context: Mapping[str, Any] = field(default_factory=dict)
    iteration: int = 0
    run: RunContext = field(default_factory=RunContext)

    def __post_init__(self) -> None:
        if self.messages is not self.run.complete:  # most replaced copies share the tuple
            object.__setattr__(self, "messages", _check_messages(tuple(self.messages), self.run))
        if type(self.tools) is not ToolSet:
            object.__setattr__(self, "tools", ToolSet(self.tools))

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation, if the caller passed one; else None."""
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
        """Return the request in the form that models accept."""
        messages, run = self.messages, self.run
        if messages is not run.paired:
            messages = with_paired_results(messages)
            if messages is self.messages:
                run.paired = messages
        return ChatRequest(messages, self.tools.definitions, self.options)

    def __repr__(self) -> str:
        sizes = f"{len(self.messages)} messages, {len(self.tools)} tools"
        return f"<ChatClientRequest: {sizes}, iteration {self.iteration}>"


def _check_messages(conversation: tuple[Message, ...], run: RunContext) -> tuple[Message, ...]:
    """Return a conversation in which each call has a result, and record for the run that it was checked.

    If it continues one of the last conversations that the run has checked, only its new messages are checked.
    """
    beginning = next((earlier for earlier in reversed(run.checked) if earlier.begins(conversation)), NOTHING_CHECKED)
    new_messages = conversation[len(beginning.messages) :]
    if not all(isinstance(message, MESSAGE_TYPES) for message in new_messages):
        expect_each("messages", conversation, MESSAGE_TYPES, ANY_MESSAGE)
    completed = with_results(new_messages)
    messages = conversation if completed is new_messages else (*beginning.messages, *completed)
    checked = CheckedConversation(messages, beginning.is_paired and are_paired(completed))
    run.checked = (*run.checked[1 - _MOST_CHECKED :], checked)
    run.complete = messages
    if checked.is_paired:
        run.paired = messages
    return messages


@frozen(repr=False)
class ValidatedOutput(Generic[OutputT]):
    """The output of a run and the text that it was read from. A pickle omits it if the value cannot be pickled."""

    text: str
    value: OutputT

    def __reduce__(self) -> tuple[Any, ...]:
        if self.value is not None and picklable(self.value) is None:
            return type(None), ()
        return ValidatedOutput, (self.text, self.value)


@frozen(repr=False)
class ChatClientResponse(Generic[OutputT]):
    """The response of one iteration (for advisors) or a run (for the caller), or one chunk.

    Attributes:
        run: the run that produced the response.
        chat_response: the model's answer; None if there is none, as in a chunk.
        messages: the whole conversation, including tool calls, their results and this answer.
        usage: the tokens used: of this iteration for advisors inside the loop, of the whole run for the caller.
        stop_reason: why the run ended: `answered`, `return_direct`, `advisor` (an advisor ended the run with
            `call.end`, answered without a model call, or replaced the answer), `awaiting_approval` (tool calls wait in
            `pending`), or the limit that the run reached (see `LoopLimits`).
        tool_results: the results of all tool calls of the run, in order.
        context: data that advisors share.
        iteration: the iteration of the tool loop that produced the response.
        offered: the tools that were sent to the model.
        delta: the piece of the answer that arrived, in a chunk; else None.
        validated: the output of a run with `output=`, which `output` returns.
        partial_output: the output so far in a chunk of a run with `output=`, which `partial` returns.
        pending: the tool calls that wait for approval, if that is why the run ended; else empty.
        state: the state with which `ChatClient.resume` resumes the run, if calls wait in `pending`; else None. It holds
            the conversation, arguments and results, so keep it where they may be kept.
        evaluations: the evaluations of this answer by an `EvaluationAdvisor`, one for each judge; empty if it was not
            evaluated.
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
    validated: ValidatedOutput[OutputT] | None = None
    partial_output: PartialOutput | ParsedOutput | None = None
    evaluations: tuple[Evaluation, ...] = ()
    pending: tuple[PendingCall, ...] = ()
    state: str | None = None

    @property
    def output(self) -> OutputT:
        """The answer as a value of the type that was passed as `output=`.

        Raises:
            RuntimeError: if there is none: `output=` was not passed, the response is a chunk, the run waits, the answer
                contains tool calls to run, or an outer advisor replaced the text of the answer after it was validated.
        """
        if self.pending:
            raise RuntimeError("the response has no output: its calls wait in `pending`; resume the run")
        if self.validated is None:
            hint = "use .partial" if self.delta is not None else "pass output= to prompt; tool calls have none"
            raise RuntimeError(f"the response has no output: {hint}")
        if self.validated.text != self.content:
            raise RuntimeError("the response has no output: an advisor replaced the answer after it was validated")
        return self.validated.value

    @property
    def partial(self) -> Any:
        """In a chunk of a run with `output=`, the JSON value that has arrived so far, not validated; else None.

        Objects lack the fields that have not arrived, and the last text may be incomplete. The value is parsed each
        time that it is read. If the model is asked again, the value starts again.
        """
        return None if self.partial_output is None else self.partial_output.value

    @property
    def content(self) -> str:
        """The text of the answer, or of the chunk."""
        if self.delta is not None:
            return self.text
        return "" if self.chat_response is None else self.chat_response.message.text

    @property
    def text(self) -> str:
        """The text that arrived in a chunk, or the text of the answer."""
        if self.delta is None:
            return self.content
        return self.delta.visible_text

    @property
    def message(self) -> AssistantMessage:
        """The model's message; empty when there is none."""
        return AssistantMessage() if self.chat_response is None else self.chat_response.message

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the last answer, or the tool calls that a chunk contains a piece of."""
        if self.delta is not None:
            return self.delta.calls() if self.delta.has_calls else ()
        return () if self.chat_response is None else self.chat_response.message.tool_calls

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the model stopped: `stop`, `length`, `tool_call`, `content_filter` or `error`."""
        if self.delta is not None:
            return self.delta.finish_reason
        return None if self.chat_response is None else self.chat_response.finish_reason

    @property
    def run_id(self) -> str:
        """The run's id, which its trace, events and audit records have as well."""
        return self.run.id

    @property
    def trace_id(self) -> str | None:
        """The trace id of the run in hex; None if the run is not traced."""
        return self.run.trace_id

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation, if the caller passed one; else None."""
        return self.run.conversation_id

    @property
    def nested_usage(self) -> NestedUsage | None:
        """The tokens and costs of runs nested in this one, at any depth; None if there are none.

        `usage` does not include them. A nested run that continues after this run has ended still adds to them.
        """
        return self.run.totals.nested_usage()

    def replace(self, **changes: Any) -> ChatClientResponse[OutputT]:
        """Return a copy with `changes`."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        return f"<ChatClientResponse of run {self.run.id}: {self.stop_reason}, iteration {self.iteration}>"
