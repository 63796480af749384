"""Requests for approval of tool calls, approvals, and checks that a decision fits its call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING

from traced_tools.core.approval import Approve, CallDecision, Denied, PendingCall, Reject
from traced_tools.core.frozen import frozen
from traced_tools.core.tool_definition import ToolCallback, definition_digest
from traced_tools.core.tool_input import InputRequest, Provide
from traced_tools.errors import ResumeError
from traced_tools.tools.schema.json_schema import SchemaCheck

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traced_tools.run.context import RunContext


@frozen(kw_only=True)
class ApprovalRequest(PendingCall):
    """A tool call that requires approval, as `decide_approval` receives it.

    Attributes:
        run: the run, with its agent, conversation, principal and attributes.
    """

    run: RunContext

    def pending(self) -> PendingCall:
        """Return the call without its run."""
        return PendingCall(**{member.name: getattr(self, member.name) for member in fields(PendingCall)})


@frozen
class Approval:
    """The approval of a tool call with certain arguments.

    Attributes:
        by: the person or service that approved, if the application named one.
        code: the reason code of the approval, if it has one.
        arguments: the canonical arguments that it is for; None for the arguments of the call before any advisor.
        instead: JSON text of the arguments that the tool gets instead of those of the model; None for those.
    """

    by: str | None = field(default=None, repr=False)
    code: str | None = None
    arguments: str | None = field(default=None, repr=False)
    instead: str | None = field(default=None, repr=False)


def check_decision(call_id: str, requests: Sequence[InputRequest] | None, decision: CallDecision | Denied) -> None:
    """Check that a decision is of the kind that a call waits for.

    Args:
        call_id: the call's id.
        requests: what the tool of the call asks for; None if the call waits for approval, or has not waited.
        decision: the decision.

    Raises:
        ResumeError: if the decision is an approval and the call waits for input, or the other way round; if an answer
            has no question, or is not one to its question.
    """
    if isinstance(decision, Reject | Denied):
        return
    if not isinstance(decision, Provide):
        if requests is not None:
            raise ResumeError(f"the call {call_id!r} waits for input: pass Provide(answers) or Reject(reason)")
        return
    if requests is None:
        raise ResumeError(f"the call {call_id!r} does not wait for input: pass Approve() or Reject(reason)")
    questions = {request.key: request for request in requests}
    if decision.answers.keys() - questions.keys():  # keys are not quoted, because a server chooses them
        raise ResumeError(
            f"an answer for the call {call_id!r} has no question: use the keys of `pending.input.requests`"
        )
    for place, key in enumerate(questions, start=1):
        if key in decision.answers and (problem := answer_problem(questions[key], decision.answers[key])):
            raise ResumeError(f"the answer to question {place} of the call {call_id!r} is invalid: {problem}")


def check_scope(decision: CallDecision | Denied) -> None:
    """Raise `ValueError` for an approval of more than its call, which only an approver of the run can give."""
    if isinstance(decision, Approve) and decision.scope != "call":
        raise ValueError("an approval of more than the call needs an ApprovalAdvisor: pass scope='call'")


def answer_problem(question: InputRequest, answer: object) -> str | None:
    """Return why a JSON value does not answer a question, without quoting either; None if it does."""
    if question.method == "sampling/createMessage":
        return None if isinstance(answer, str) else "it must be the text of a model, a str"
    if question.method == "roots/list":
        is_list = isinstance(answer, list | tuple) and all(isinstance(folder, str) for folder in answer)
        return None if is_list else "it must be a list of folders, each a str"
    if answer is None:
        return None
    if not isinstance(answer, Mapping):
        return "it must be what the user has entered, a mapping, or None if the user declines"
    keywords = SchemaCheck(question.schema or {}, "an elicitation").failed_keywords(dict(answer))
    return f"it does not meet the schema of the question: {', '.join(keywords)}" if keywords else None


def check_unchanged(call_id: str, name: str, digest: str, source: str, tool: ToolCallback | None) -> None:
    """Check that the tool of a call that waited for approval is still the tool that the decision is about.

    Args:
        call_id: the call's id.
        name: the tool's name.
        digest: the digest of its definition when the call began to wait.
        source: where it came from then.
        tool: the tool of that name now; None if there is none.

    Raises:
        ResumeError: if the tool is gone, or has another definition or source.
    """
    if tool is None:
        problem = f"the tool {name!r} of the waiting call {call_id!r} is gone: pass it in tools="
        raise ResumeError(problem, lasting="tool_missing")
    if definition_digest(tool.definition) != digest:
        raise ResumeError(
            f"the definition of the tool {name!r} has changed since the call {call_id!r} began to wait: "
            "a decision about it is for the former definition",
            lasting="tool_changed",
        )
    if tool.metadata.source != source:
        raise ResumeError(
            f"the tool {name!r} comes from {tool.metadata.source!r}, and from {source!r} when the call {call_id!r} "
            "began to wait: a decision about it is for the former tool",
            lasting="tool_changed",
        )
