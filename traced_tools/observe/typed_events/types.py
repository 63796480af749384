"""The typed events of a run: immutable, versioned, and JSON with `model_dump_json`.

Contents (arguments, results, messages, reasons) are None unless the run captures them on events. A delta always has its
piece of the answer, since an advisor in the process sees it anyway; `for_export()` returns what may leave the process.
A `repr` shows which event it is and never what was said.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from traced_tools.core.enums import Decision, IterationOutcome, StopReason, ToolOutcome
from traced_tools.core.messages import Usage, Value, encodable
from traced_tools.core.policy_verdict import PolicyVerdict
from traced_tools.observe import names
from traced_tools.observe.run_attributes import RunAttributes

SCHEMA_VERSION: Final = 1
"""Grows when a field changes its meaning or goes; a new field alone is no new version."""

Text = Annotated[str, AfterValidator(encodable)]
"""A text from elsewhere, with `?` for what JSON cannot hold."""


def _read_only(value: Any, validate: ValidatorFunctionWrapHandler) -> RunAttributes:
    return value if type(value) is RunAttributes else RunAttributes(validate(value))


_Scalar = bool | int | float | Text
_Value = _Scalar | tuple[_Scalar, ...]
Attributes = Annotated[
    Mapping[str, _Value], WrapValidator(_read_only), PlainSerializer(dict, return_type=dict[str, _Value])
]


class Event(Value):
    """Something that happened in a run.

    Args:
        schema_version: the version of the fields.
        id: a UUID of version 7, so that ids sort by time, to a quarter of a microsecond.
        time: when, in UTC.
        run_id: the run it belongs to.
        sequence: its number within the run, from 1 and without gaps. A delta has none of its own: it carries that of
            the event before it.
        trace_id: the run's trace in hex; None when nothing is traced.
        span_id: the span it happened in, in hex.
        agent: the client's name.
        conversation_id: the caller's conversation, when it gave one.
        iteration: the pass of the tool loop, from 1; 0 outside it.
        parent_run_id: the run that this run is nested in, such as the run whose tool asks this agent.
        attributes: the attributes that the application set on the run and on the runs it is nested in.
        principal: on whose behalf the run is: the name if content is captured, else a keyed pseudonym.
        actors: which agents, tools and MCP clients stand between the principal and the run, the outermost first.
    """

    model_config = ConfigDict(extra="ignore")  # a later release may have written it

    type: str
    schema_version: Literal[1] = SCHEMA_VERSION
    id: str
    time: datetime
    run_id: str
    sequence: int
    trace_id: str | None = None
    span_id: str | None = None
    agent: Text
    conversation_id: Text | None = None
    iteration: int
    parent_run_id: str | None = None
    attributes: Attributes | None = None
    principal: Text | None = Field(default=None, repr=False)
    actors: tuple[Text, ...] = ()

    def for_export(self) -> Self:
        """Return the event in a form that may leave the process."""
        return self


class RunStarted(Event):
    """A run begins.

    Args:
        model: the model it asks.
        provider: whose model that is.
        input_messages: the conversation, as JSON in the shape of the GenAI conventions; content. The tools are not
            known yet, so of earlier calls it has no arguments and results.
    """

    type: Literal["run_started"] = "run_started"
    model: Text
    provider: Text
    input_messages: Text | None = Field(default=None, repr=False)


class IterationStarted(Event):
    """An iteration of the tool loop begins."""

    type: Literal["iteration_started"] = "iteration_started"


class ModelResponded(Event):
    """A model has answered.

    Args:
        model: the model that answered, as the provider reports it; None if it does not.
        provider: whose model that is.
        response_id: the provider's id of the answer.
        finish_reason: why the model stopped.
        tool_calls: how many calls it asks for.
        usage: what the provider reports.
        duration: seconds from asking to the whole answer.
        output_messages: the answer, as JSON in the shape of the GenAI conventions; content.
    """

    type: Literal["model_responded"] = "model_responded"
    model: Text | None = None
    provider: Text
    response_id: Text | None = None
    finish_reason: Text | None = None
    tool_calls: int
    usage: Usage | None = None
    duration: float
    output_messages: Text | None = Field(default=None, repr=False)


class AnswerEvaluated(Event):
    """A judge has evaluated an answer, or failed to.

    Args:
        advisor: the advisor that asked the judge.
        name: what is evaluated.
        score: how good the answer is, from 0 to 1; None if the judge failed.
        label: what the score means.
        passed: whether the score reaches the threshold; None if the judge failed.
        error_type: class of the error, when the judge failed.
        response_id: the provider's id of the answer.
        explanation: the judge's feedback; content.
    """

    type: Literal["answer_evaluated"] = "answer_evaluated"
    advisor: Text
    name: Text
    score: float | None = None
    label: Text | None = None
    passed: bool | None = None
    error_type: Text | None = None
    response_id: Text | None = None
    explanation: Text | None = Field(default=None, repr=False)


class ToolEvent(Event):
    """Something that happened to a requested call.

    Args:
        call_id: the call's id.
        tool: the tool's name; `_unknown` for a name that the model made up.
        source: where the tool comes from; `local`, or the configured name of an MCP server.
        batch_index: its place among the calls of the same answer, from 0.
        batch_size: how many those are.
    """

    call_id: Text
    tool: Text
    source: Text
    batch_index: int
    batch_size: int


class ToolIntended(ToolEvent):
    """The model asks for a tool; nothing has been decided and nothing has run.

    Args:
        arguments_size: bytes of the arguments.
        arguments: the arguments, JSON text; content.
    """

    type: Literal["tool_intended"] = "tool_intended"
    arguments_size: int
    arguments: Text | None = Field(default=None, repr=False)


class ToolDecided(ToolEvent):
    """What was decided about a call; a tool that is allowed or approved starts now.

    Args:
        decision: the decision.
        advisor: the advisor that decided, when one did.
        reason_code: why it was decided so, a code set in code, such as the broken limit.
        rule: the policy's rule that decided, if one did.
        policy_digest: the digest of the policy that decided, if one did.
        evaluated: the verdicts of policies that are only evaluated, the outermost first.
        by: the person or service that approved or refused the call, as the application names them if content is
            captured, else a keyed pseudonym.
        error_type: the class of what is wrong with an invalid call.
        intent: the reason the model gave, where one is known; content.
        arguments: the arguments for the tool, JSON text, if advisors or who approved the call changed them; content.
    """

    type: Literal["tool_decided"] = "tool_decided"
    decision: Decision
    advisor: Text | None = None
    reason_code: Text | None = None
    rule: Text | None = None
    policy_digest: Text | None = None
    evaluated: tuple[PolicyVerdict, ...] = ()
    by: Text | None = None
    error_type: Text | None = None
    intent: Text | None = Field(default=None, repr=False)
    arguments: Text | None = Field(default=None, repr=False)


class ToolStarted(ToolEvent):
    """The first attempt of a tool starts. A call that runs has one such event, and one more for each rerun."""

    type: Literal["tool_started"] = "tool_started"


class ToolProgressed(ToolEvent):
    """A tool that runs has reported how far it is.

    Args:
        progress: how far it is.
        total: the value of `progress` at which it is done, if it has reported one.
        message: what it does now, as JSON text; content.
    """

    type: Literal["tool_progressed"] = "tool_progressed"
    progress: float = Field(allow_inf_nan=False)
    total: float | None = Field(default=None, allow_inf_nan=False)
    message: Text | None = Field(default=None, repr=False)


class ToolFinished(ToolEvent):
    """A tool that ran has ended. Each `ToolStarted` is followed by one such event.

    A tool that cannot be stopped when its run is interrupted has ended as `cancelled`, although its thread goes on.

    Args:
        outcome: how.
        error_type: class of the error, when it failed.
        attempts: how often it was tried.
        duration: seconds from its start to its end, all attempts and pauses between them.
        result_size: bytes of what the model reads; None if the run did not wait for the end.
        result: what the model reads; content.
    """

    type: Literal["tool_finished"] = "tool_finished"
    outcome: ToolOutcome
    error_type: Text | None = None
    attempts: int
    duration: float
    result_size: int | None = None
    result: Text | None = Field(default=None, repr=False)


class ToolsChanged(Event):
    """The tools of an MCP server differ from the pinned ones.

    Args:
        server: the name of the server.
        changes: what differs, such as `search: description`: the tool and one of its parts, or `new`. A tool has the
            name that the model is offered, or, if the run is refused, the name that the server uses.
        refused: whether the run ends for that reason.
    """

    type: Literal["tools_changed"] = "tools_changed"
    server: Text
    changes: tuple[Text, ...]
    refused: bool


class ToolsDiscovered(Event):
    """A tool search has discovered tools: the model is offered them from now on.

    Args:
        tools: their names, in the order of discovery.
        index: the kind of the tool index.
        searched: whether a search found them; False if the model called them without a search.
    """

    type: Literal["tools_discovered"] = "tools_discovered"
    tools: tuple[Text, ...]
    index: Text
    searched: bool


class MemoryRead(Event):
    """Memory has read a conversation: what the model is sent of it, or what was looked up.

    Args:
        messages: how many messages were read.
        left_out: how many messages of the conversation are not in what the model is sent.
    """

    type: Literal["memory_read"] = "memory_read"
    messages: int
    left_out: int


class MemoryStored(Event):
    """Memory has appended messages to a conversation.

    Args:
        messages: how many.
    """

    type: Literal["memory_stored"] = "memory_stored"
    messages: int


class MemoryCompacted(Event):
    """A conversation was compacted: the model is sent less of it from now on.

    Args:
        entry_id: the id of the entry that records the compaction in the conversation.
        trigger: the name of what caused it.
        strategy: the names of the strategies that made it.
        covered: how many entries it covers. They stay in the conversation.
        through: the position in the conversation up to which it covers entries.
        branch: the path of the sub-agent whose entries it covers; empty for the main agent.
        tokens_before: the tokens that the model was sent before it, if known.
        tokens_after: the tokens that the model is sent after it, if known.
        estimated: whether the tokens are an estimate.
    """

    type: Literal["memory_compacted"] = "memory_compacted"
    entry_id: Text
    trigger: Text
    strategy: Text
    covered: int
    through: int
    branch: Text = ""
    tokens_before: int | None = None
    tokens_after: int | None = None
    estimated: bool = False


class MissingResultsAnswered(Event):
    """Tool calls that an earlier, interrupted run left without results were answered in the conversation.

    Args:
        not_run: how many were answered as not executed.
        unknown: how many were answered as of unknown outcome: their tools may have run.
    """

    type: Literal["missing_results_answered"] = "missing_results_answered"
    not_run: int
    unknown: int


class IterationFinished(Event):
    """An iteration of the tool loop has ended.

    Args:
        outcome: whether the model asked for tools or answered, or the pass failed.
        error_type: class of the error, when it failed.
        tool_calls: how many calls the model asked for.
        duration: seconds.
    """

    type: Literal["iteration_finished"] = "iteration_finished"
    outcome: IterationOutcome
    error_type: Text | None = None
    tool_calls: int
    duration: float


class RunFinished(Event):
    """A run has ended: with an answer, at a limit, with an error or by cancellation.

    Args:
        stop_reason: why.
        error_type: class of the error, when it failed.
        iterations: how many passes it took.
        tool_calls: how many calls the model asked for.
        usage: tokens of the whole run, as far as providers report them.
        duration: seconds.
        output_messages: the answer, as JSON in the shape of the GenAI conventions; content.
    """

    type: Literal["run_finished"] = "run_finished"
    stop_reason: StopReason
    error_type: Text | None = None
    iterations: int
    tool_calls: int
    usage: Usage | None = None
    duration: float
    output_messages: Text | None = Field(default=None, repr=False)


class Delta(Event):
    """A piece of an answer that is being streamed.

    Args:
        delta_index: numbers the pieces of a run from 0.
        size: bytes of the piece.
        may_export: whether the piece itself may leave the process.
    """

    delta_index: int
    size: int = 0
    may_export: bool = Field(default=False, exclude=True, repr=False)


class TextDelta(Delta):
    """A piece of the answer's text.

    Args:
        text: the piece.
        restarts: whether the provider starts its answer again with this piece. The pieces of text and of arguments that
            came before it in the same pass are then no part of the answer.
    """

    type: Literal["text_delta"] = "text_delta"
    text: Text = Field(repr=False)
    restarts: bool = False

    def for_export(self) -> Self:
        """Return the piece, without its text unless that may leave the process."""
        return self if self.may_export else self.replace(text="")


class ToolArgumentsDelta(Delta):
    """A piece of a tool call's arguments, as the model writes them.

    Args:
        call_id: the call it belongs to: the id that results and spans of the call have.
        tool_name: the tool, as the model wrote its name.
        arguments: JSON text; the pieces of a call join to its arguments.
        names_tool: whether `tool_name` is a tool's that the model was offered, and may leave the process as such.
    """

    type: Literal["tool_arguments_delta"] = "tool_arguments_delta"
    call_id: Text
    tool_name: Text = Field(repr=False)
    arguments: Text = Field(repr=False)
    names_tool: bool = Field(default=False, exclude=True, repr=False)

    def for_export(self) -> Self:
        """Return the piece, without a name that the model made up and without arguments that may not be captured."""
        name = self.tool_name if self.names_tool else names.UNKNOWN_TOOL
        return self if self.may_export else self.replace(tool_name=name, arguments="")
